"""Contract of selective_state_update: axes, dtypes, options; the names are those of mamba_ssm's function.

h <- exp(A dt') h + dt' x B^T,  y = (h C + D x) silu(z): one step of mamba_chunk_scan_combined (Dao and Gu 2024,
arXiv:2405.21060), the state pool updated in place. It holds no kernel and no reference.
"""

from __future__ import annotations

from typing import Literal

from ssmgen.ops.base import Closed, Dtype
from ssmgen.ops.mamba_chunk_scan_combined import Shape

NAME = "selective_state_update"


class Dtypes(Closed):
    """`x` also of dt, B, C, z and out; `state` of the state pool."""

    x: Dtype
    state: Literal["float32", "bfloat16", "float16"]


class Options(Closed):
    """What a step is given; `slots` are state_batch_indices."""

    D: bool
    z: Literal["none", "silu"]
    dt_bias: bool
    dt_softplus: bool
    slots: bool


class Operator(Closed):
    """One model's selective_state_update."""

    shape: Shape
    dtypes: Dtypes
    options: Options
