"""The layers this package knows, as sizes with their origins: a Mamba-2 mixer and a Gated DeltaNet mixer.

The limits of a shape are the operator's (`ssmgen.ops`); no field name of any architecture is known here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from pydantic import ValidationError

from ssmgen.configs.fields import Number
from ssmgen.configs.layers import Layers
from ssmgen.errors import ConfigError, ViolationError
from ssmgen.ops import gated_delta_rule_packed_decode as gdn
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Closed

S = TypeVar("S", bound=Closed)


@dataclass(frozen=True)
class Mamba2Mixer:
    """H, G, P and S of a Mamba-2 mixer, its options D (`skip`) and z (`gate`); `remarks` that the spec shall carry."""

    heads: Number
    groups: Number
    head_dim: Number
    state: Number
    remarks: tuple[str, ...] = ()
    skip: Literal["per_head", "per_channel"] = "per_head"
    gate: Literal["none", "silu"] = "none"

    operator = mamba2.NAME
    title = "Mamba-2"

    def sizes(self) -> dict[str, Number]:
        """The sizes by the operator's names, in the operator's order."""
        return {"heads": self.heads, "groups": self.groups, "head_dim": self.head_dim, "state": self.state}

    def shape(self) -> mamba2.Shape:
        """The operator's shape; ConfigError where a size is beyond what it allows."""
        return _shape(mamba2.Shape, self.sizes())

    def split(self, ranks: int) -> Mamba2Mixer:
        """What one of `ranks` GPUs holds: heads are divided; groups are divided, or one is replicated."""
        heads, groups = self.heads, self.groups

        def whole(count: int) -> bool:
            return heads.value % count == 0 and (groups.value % count == 0 or count % groups.value == 0)

        if not whole(ranks):
            raise _no_split((heads, groups), ranks, whole)
        if groups.value % ranks:
            one = replace(groups, value=1, origin=f"{groups.origin}: {groups.value}, one replicated on {ranks} GPUs")
            return replace(self, heads=_share(heads, ranks), groups=one)
        return replace(self, heads=_share(heads, ranks), groups=_share(groups, ranks))


@dataclass(frozen=True)
class GatedDeltaMixer:
    """Hk, Hv, K and V of a Gated DeltaNet mixer; `state_dtype` of its cache and the scale of beta, with origins."""

    key_heads: Number
    value_heads: Number
    key_dim: Number
    value_dim: Number
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    beta_scale: Literal[1, 2] = 1
    remarks: tuple[str, ...] = ()

    operator = gdn.NAME
    title = "Gated DeltaNet"

    def sizes(self) -> dict[str, Number]:
        """The sizes by the operator's names, in the operator's order."""
        return {
            "key_heads": self.key_heads,
            "value_heads": self.value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
        }

    def shape(self) -> gdn.Shape:
        """The operator's shape; ConfigError where a size is beyond what it allows."""
        return _shape(gdn.Shape, self.sizes())

    def split(self, ranks: int) -> GatedDeltaMixer:
        """What one of `ranks` GPUs holds: key and value heads are divided."""
        key_heads, value_heads = self.key_heads, self.value_heads

        def whole(count: int) -> bool:
            return key_heads.value % count == 0 and value_heads.value % count == 0

        if not whole(ranks):
            raise _no_split((key_heads, value_heads), ranks, whole)
        return replace(self, key_heads=_share(key_heads, ranks), value_heads=_share(value_heads, ranks))


Mixer = Mamba2Mixer | GatedDeltaMixer


@dataclass(frozen=True)
class Reading:
    """What an architecture's module reads: one mixer, and which layers hold it."""

    mixer: Mixer
    layers: Layers


def _share(number: Number, ranks: int) -> Number:
    return replace(number, value=number.value // ranks, origin=f"{number.origin}: {number.value} over {ranks} GPUs")


def _no_split(numbers: tuple[Number, Number], ranks: int, whole: Callable[[int], bool]) -> ConfigError:
    first, second = numbers
    counts = [n for n in range(1, first.value + 1) if whole(n)]
    nearest = max(n for n in counts if n <= ranks)
    path = shlex.quote(first.where.path)
    return ConfigError(
        f"{first.origin} = {first.value}, {second.origin} = {second.value}: cannot be split over {ranks} GPUs",
        where=first.where,
        found=f"tensor parallel {ranks}",
        expected="tensor parallel " + ", ".join(map(str, counts)),
        next=f"ssmgen new {path} --tp {nearest}" if nearest > 1 else f"ssmgen new {path}",
    )


def _shape(model: type[S], sizes: dict[str, Number]) -> S:
    try:
        return model.model_validate({name: number.value for name, number in sizes.items()})
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
    if first["loc"]:
        number = sizes[str(first["loc"][0])]
        raise ConfigError(
            f"{number.origin}: beyond what the kernels can hold",
            where=number.where,
            found=number.value,
            expected=f"{first['loc'][0]} {first['msg'].removeprefix('Input should be ')}",
            next=f"if {number.origin} is wrong, correct it",
        )
    error: ViolationError = first["ctx"]["error"]
    origins = ", ".join(f"{name} = {number.value} from {number.origin}" for name, number in sizes.items())
    where = sizes[error.key[0]].where
    raise ConfigError(str(error), where=where, found=origins, expected=error.expected, next="correct one of the two")
