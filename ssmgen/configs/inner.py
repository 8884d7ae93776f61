"""The inner size of a Mamba-2 mixer: `expand` times the model's width, and the head dim that must fit it.

For the architectures whose class demands heads * head dim = inner size; it knows no file format.
"""

from __future__ import annotations

from ssmgen.configs.fields import Fields, Number, derived


def expanded(config: Fields, expand: str, hidden: int, width: str = "hidden_size") -> Number:
    """`expand` times the width, whose class defaults are 2 and `hidden`."""
    factor, size = config.integer(expand, 2), config.integer(width, hidden)
    return derived(factor.value * size.value, f"{factor.origin} * {size.origin}", factor, size)


def head_dim(config: Fields, name: str, heads: Number, inner: Number) -> Number:
    """P from a field that is a whole number or "auto" (the class default): heads * P must equal the inner size."""
    if config.data.get(name, "auto") == "auto":
        return quotient(config, name, inner, heads)
    size = config.integer(name)
    check(config, name, heads, size, inner)
    return size


def check(config: Fields, name: str, heads: Number, size: Number, inner: Number) -> None:
    """Refuse heads * head dim != inner size, at the field `name`."""
    if heads.value * size.value != inner.value:
        raise config.error(
            name,
            f"{heads.origin} * {size.origin} = {heads.value} * {size.value} = {heads.value * size.value}"
            f" contradicts {inner.origin} = {inner.value}",
            expected="both products equal, as the model's class demands",
            mend=f"correct {heads.origin}, {size.origin} or {inner.origin}",
        )


def quotient(config: Fields, name: str, inner: Number, part: Number) -> Number:
    """The inner size divided by `part`, which must divide it; an error is reported at the field `name`."""
    if inner.value % part.value:
        raise config.error(
            name if name in config.data else part.origin.split(" ")[0],
            f"{part.origin} = {part.value} does not divide {inner.origin} = {inner.value}",
            expected=f"{part.origin.split(' ')[0]} that divides {inner.value}",
            mend=f"correct {part.origin} or {inner.origin}",
        )
    origin = f"{inner.origin} / {part.origin} = {inner.value} / {part.value}"
    return derived(inner.value // part.value, origin, inner, part)


def remark_ignored(config: Fields, expand: str, heads: Number, size: Number) -> Number:
    """P, with a remark where `expand` * hidden_size contradicts heads * P but the class does not look at it."""
    factor, width = config.data.get(expand), config.data.get("hidden_size")
    product = heads.value * size.value
    # what is ignored is not checked either
    if type(factor) is not int or type(width) is not int or factor * width == product:
        return size
    ignored = f"{expand} * hidden_size = {factor * width} is ignored"
    return size.remark(f"{heads.origin} * {size.origin} = {product} decides, {ignored}")
