"""A stand-in for `cuda.tile` that computes only shapes, and counts the products and exponentials a kernel asks for.

It runs a rendered kernel's own text, block by block, so a count follows the kernel and not somebody's idea of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product, zip_longest
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any


class Tile:
    """A tile of which only the shape is known."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def reshape(self, shape: Sequence[int]) -> Tile:
        assert prod(shape) == prod(self.shape), (self.shape, shape)
        return Tile(shape)

    def astype(self, _dtype: object) -> Tile:
        return self

    def transpose(self) -> Tile:
        return Tile(self.shape[::-1])

    def __getitem__(self, key: tuple[object, ...]) -> Tile:
        kept = iter(self.shape)
        return Tile([1 if part is None else next(kept) for part in key])


def _together(*operands: Any, **_: Any) -> Tile:
    shapes = [operand.shape[::-1] if isinstance(operand, Tile) else () for operand in operands]
    sizes = [{size for size in axis if size != 1} or {1} for axis in zip_longest(*shapes, fillvalue=1)]
    assert all(len(size) == 1 for size in sizes), shapes
    return Tile([size.pop() for size in sizes][::-1])


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "ge", "gt", "le", "lt", "eq", "and"):
    setattr(Tile, f"__{_name}__", _together)


class Counts:
    """FLOPs of matrix products and exponentials, over every block that was run."""

    def __init__(self) -> None:
        self.flops = self.exponentials = 0

    def run(self, source: str, name: str, grid: Sequence[int], arguments: Sequence[Any]) -> None:
        """Run the kernel `name` of `source` on every block of `grid`."""
        block: list[int] = []
        globals_: dict[str, Any] = {
            "__builtins__": dict(vars(__import__("builtins")), __import__=self._import(block, grid))
        }
        exec(compile(source, name, "exec"), globals_)
        for block[:] in product(*map(range, (*grid, 1, 1)[:3])):
            globals_[name](*arguments)

    def _import(self, block: list[int], grid: Sequence[int]) -> Callable[..., Any]:
        tile = self._tile(block, grid)
        return lambda *_: SimpleNamespace(tile=tile)

    def _tile(self, block: list[int], grid: Sequence[int]) -> ModuleType:
        ct = ModuleType("cuda.tile")

        def mma(a: Tile, b: Tile, into: Tile) -> Tile:
            (rows, depth), (depth_too, columns) = a.shape, b.shape
            assert depth == depth_too
            assert into.shape == (rows, columns)
            self.flops += 2 * rows * columns * depth
            return into

        def exponential(x: Tile) -> Tile:
            self.exponentials += prod(x.shape)
            return x

        same: Callable[..., Tile] = lambda x, *_, **__: x  # noqa: E731
        members = {
            "mma": mma,
            "exp": exponential,
            "exp2": exponential,
            "log": same,
            "cumsum": same,
            "where": _together,
            "minimum": _together,
            "maximum": _together,
            "load": lambda array, index, shape, **_: Tile(shape),
            "store": lambda array, index, tile, **_: None,
            "gather": lambda array, index, **_: _together(*index),
            "scatter": lambda array, index, value, **_: None,
            "sum": lambda tile, axis: Tile(tile.shape[:axis] + tile.shape[axis + 1 :]),
            "extract": lambda tile, index, shape: Tile(shape),
            "zeros": lambda shape, dtype: Tile(shape),
            "arange": lambda size, dtype: Tile((size,)),
            "cdiv": lambda a, b: -(-a // b),
            "bid": lambda axis: block[axis],
            "num_blocks": lambda axis: grid[axis],
            "kernel": lambda **_: lambda function: function,
            "PaddingMode": SimpleNamespace(ZERO=None),
        }
        members |= dict.fromkeys(("int32", "float32", "bfloat16", "float16", "tfloat32"))
        vars(ct).update(members)
        return ct
