"""Which layers of a model hold the mixer: by names, by letters, by exceptions or by a period.

A model of which no layer does is refused with the field that decided; no shape is read here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ssmgen.configs.fields import ANOTHER_MODEL, Fields, show
from ssmgen.errors import ConfigError

ATTENTION = frozenset(
    {"attention", "full_attention", "sliding_attention", "chunked_attention", "indexed_attention"}
    | {"qwen_sparse_attention"}
)
TOTAL = "num_hidden_layers"


@dataclass(frozen=True)
class Layers:
    """`mixers` of `total` layers hold the mixer (None where the file does not say); `rule` says how that is known."""

    mixers: int | None
    total: int | None
    rule: str

    def __str__(self) -> str:
        if self.total is None:
            return self.rule
        count = f"all {self.total}" if self.mixers == self.total else f"{self.mixers} of {self.total}"
        return f"{count} layers, by {self.rule}" if self.rule else f"{count} layers"


def total(config: Fields, name: str = TOTAL) -> int | None:
    """The number of layers, where the file gives it."""
    return config.integer(name).value if config.given(name) else None


def every(config: Fields, name: str = TOTAL) -> Layers:
    """Each layer holds a mixer."""
    count = total(config, name)
    return Layers(count, count, "all layers" if count is None else "")


def all_but(config: Fields, exceptions: str, name: str = TOTAL) -> Layers:
    """Each layer holds a mixer but those numbered in the field `exceptions`."""
    count = total(config, name)
    others = config.indices(exceptions, count)
    if not others:
        return every(config, name)
    if count is None:
        return Layers(None, None, f"all layers but {', '.join(map(str, others))}, by {exceptions}")
    if len(others) == count:
        raise _none(config, exceptions, f"all {count} layers are attention")
    return Layers(count - len(others), count, exceptions)


def named(config: Fields, name: str, mixers: frozenset[str], others: frozenset[str]) -> Layers:
    """Count the entries of a list, or the letters of a string, that name a mixer; an unknown name is refused."""
    value = config.data[name]
    if not isinstance(value, (list, str)) or not value:
        raise config.error(name, "names no layers", expected="a list of layer types, or a string of letters")
    for i, item in enumerate(value):
        if not isinstance(item, str) or item not in mixers | others:
            place = (name, i) if isinstance(value, list) else (name,)
            which = "" if isinstance(value, list) else f", letter {i + 1} of {len(value)}"
            raise ConfigError(
                f"{config.label(*place)}{which}: unknown layer type",
                where=config.where(*place),
                found=show(item),
                expected="one of " + ", ".join(sorted(mixers) + sorted(others)),
                next=f"if {config.label(*place)} is wrong, correct it",
            )
    kinds = Counter(value)
    count = sum(kinds[kind] for kind in mixers)
    if not count:
        raise _none(config, name, " and ".join(f"{kinds[kind]} are {kind!r}" for kind in sorted(kinds)))
    return Layers(count, len(value), name)


def listed(config: Fields, name: str, mixers: frozenset[str], others: frozenset[str]) -> Layers:
    """As `named`, where the list must be as long as the number of layers says."""
    layers = named(config, name, mixers, others)
    count = total(config)
    if count is not None and count != layers.total:
        raise config.error(
            TOTAL,
            f"contradicts {config.label(name)} (line {config.where(name).line}), which names {layers.total}",
            expected=str(layers.total),
            mend=f"correct {config.label(TOTAL)} or {config.label(name)}",
        )
    return layers


def periodic(config: Fields, period: str, default: int) -> Layers:
    """Each layer holds a mixer but every `period`-th."""
    every_nth = config.integer(period, default)
    if every_nth.value == 1:
        raise _none(config, period, "every layer is attention")
    count = total(config)
    if count is None:
        return Layers(None, None, f"all layers but every {every_nth.value}th, by {every_nth.origin}")
    return Layers(count - count // every_nth.value, count, every_nth.origin)


def _none(config: Fields, name: str, found: str) -> ConfigError:
    return ConfigError(
        f"{config.label(name)}: no layer of this model holds a Mamba-2 or Gated DeltaNet mixer",
        where=config.where(name),
        found=found,
        expected="at least one layer to generate kernels for",
        next=ANOTHER_MODEL,
    )
