"""Plain fp64 references, one module an operator, and the error they measure.

They share nothing with the kernels, chunk nothing and optimise nothing: whoever doubts a kernel must not doubt these.
"""
