"""Whole problems, drawn, run and compared with the fp64 recurrence: a model's spec, its generated kernels, one call.

    problems (what may be drawn, as one line of text) -> inputs (tensors by regime and layout) -> check (run, compare)

`run` does it for committed models, behind `ssmgen verify`; `ssmgen.testing` does it for Hypothesis.
"""
