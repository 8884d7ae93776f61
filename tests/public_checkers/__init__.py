"""What public checkers make of the red team's candidates: each checker as its authors published it, on the same task.

    python -m tests.public_checkers --json public_checkers.json
        --kernelbench CHECKOUT --sol-execbench CHECKOUT --flashinfer-bench FOLDER --kernelguard EXECUTABLE

A checkout is of the repository, a folder one in which the package lies unpacked. What a checker imports must be
installed beside ssmgen. Every candidate meets every checker in a process of its own. Nothing of theirs is kept here.
Without a GPU their own timers cannot run, and a loop of as many calls takes their place: they judge no result. All else
runs as it is, on the CPU, with kernels interpreted.
"""
