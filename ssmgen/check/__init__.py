"""The checker: whether a candidate kernel is right, and whether it is faster, decided where it cannot reach.

    contract -> certificate (can it tell right from wrong?)
    candidate -> static -> build -> verify (in a process of its own) -> time -> physics -> Verdict

It proposes nothing and tunes nothing.
"""
