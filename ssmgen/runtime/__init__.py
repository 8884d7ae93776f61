"""What launches compiled kernels: all that a host needs beside torch and cuda-bindings.

Its modules import one another and nothing else of ssmgen, because `ssmgen bundle` copies them as they are: what serves
a bundle is what serves `ssmgen.load`. Nothing here compiles, generates or writes.
"""
