"""The enumerations of `cuda.tile`, under its names."""

from __future__ import annotations

import math
from enum import Enum


class PaddingMode(Enum):
    """What a tile holds beyond its array."""

    UNDETERMINED = "undetermined"
    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "pos_inf"
    NEG_INF = "neg_inf"


PADDING = {
    PaddingMode.ZERO: 0.0,
    PaddingMode.NEG_ZERO: -0.0,
    PaddingMode.NAN: math.nan,
    PaddingMode.POS_INF: math.inf,
    PaddingMode.NEG_INF: -math.inf,
}


class RoundingMode(Enum):
    """How a result is rounded."""

    RN = "nearest_even"
    RZ = "zero"
    RM = "negative_inf"
    RP = "positive_inf"
    RA = "nearest_away"
    FULL = "full"
    APPROX = "approx"
    RZI = "nearest_int_to_zero"


class MemoryOrder(Enum):
    """How an access is ordered with others of its block."""

    WEAK = "weak"
    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"


class MemoryScope(Enum):
    """Among whom an access is ordered."""

    NONE = "none"
    BLOCK = "block"
    DEVICE = "device"
    SYS = "sys"


ACQUIRES = (MemoryOrder.ACQUIRE, MemoryOrder.ACQ_REL)
RELEASES = (MemoryOrder.RELEASE, MemoryOrder.ACQ_REL)
