"""The module that stands in for `cuda.tile` in interpreted files, and the builtins that mean something else in kernels.

What it does not have is refused where it is used, by name and line.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ssmgen.interpreter import (
    access,
    arithmetic,
    arrays,
    atomics,
    dtypes,
    elementwise,
    enums,
    gathering,
    launching,
    products,
    reductions,
    shapes,
)
from ssmgen.interpreter.blocks import current, running
from ssmgen.interpreter.faults import MARK, unsupported, violation
from ssmgen.interpreter.values import Scalar, Tile, as_scalar, constant_int, determined, integer, number

TILE = "cuda.tile"


class Unknown:
    """A name of `cuda.tile` that the interpreter does not know: it may be imported, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise unsupported(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self._name}.{name}")


class _Submodules(dict[str, Unknown]):
    """The modules inside `cuda.tile`, its private ones too: host code may import any of them."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Unknown:
        return self.setdefault(name, Unknown(f"ct.{name}"))


class TileModule(ModuleType):
    """`cuda.tile` as the interpreter has it; `launcher` holds promises and counts."""

    def __init__(self, launcher: launching.Launcher) -> None:
        super().__init__(TILE, "Stands in for cuda.tile in interpreted files.")
        self.__path__: list[str] = []
        self.launcher = launcher
        self.__dict__.update(_members(), kernel=launcher.kernel, launch=launcher.launch)
        self.submodules = _Submodules()
        self.tune = self.submodules["tune"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"ct.{name}")


def _binary(name: str) -> Callable[..., Any]:
    def apply(
        x: Any, y: Any, /, *, rounding_mode: Any = None, flush_to_zero: bool = False, propagate_nan: bool = False
    ) -> Any:
        elementwise.check_hints(name, rounding_mode)
        if not isinstance(x, Tile) and not isinstance(y, Tile):
            return _of_numbers(name, number(x), number(y))
        return arithmetic.binary(name, x, y, propagate_nan=propagate_nan)

    apply.__name__ = name
    return apply


def _of_numbers(name: str, x: Any, y: Any) -> Any:
    """Of two numbers an operation makes a number."""
    others: dict[str, Callable[..., Any]] = dict(truediv=operator.truediv, pow=operator.pow, atan2=math.atan2)
    function = others.get(name) or arithmetic.OPERATIONS[name].on_ints
    assert function is not None
    try:
        return function(x, y)
    except ZeroDivisionError:
        raise violation("overflow", f"{name} of {x} by zero") from None
    except TypeError:
        raise violation("types", f"{name} of {x!r} and {y!r}") from None


def _unary(of_tile: Callable[[Tile], Any], of_number: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: of_tile(x) if isinstance(x, Tile) else of_number(number(x))


def _opposite(value: Any) -> Any:
    return not value if isinstance(value, bool) else ~value


def _of_grid(what: str, axis: Any, sizes: tuple[int, ...]) -> Scalar:
    at = constant_int(axis, "an axis")
    if at not in (0, 1, 2):
        raise violation("shapes", f"{what} of axis {at}", expected="0, 1 or 2")
    return Scalar(sizes[at], dtypes.int32)


def bid(axis: Any) -> Scalar:
    """The running block's index along an axis of the grid."""
    return _of_grid("bid", axis, current("bid").index)


def num_blocks(axis: Any) -> Scalar:
    """The grid's size along an axis."""
    return _of_grid("num_blocks", axis, current("num_blocks").grid)


def divmod_(x: Any, y: Any, /) -> tuple[Any, Any]:
    """(x // y, x % y)."""
    if not isinstance(x, Tile) and not isinstance(y, Tile):
        return _of_numbers("floordiv", number(x), number(y)), _of_numbers("mod", number(x), number(y))
    if arithmetic.common_dtype(arithmetic.OPERATIONS["floordiv"], x, y).is_float:
        raise violation("types", "divmod of floats", expected="integers")
    return arithmetic.binary("floordiv", x, y), arithmetic.binary("mod", x, y)


def assert_(condition: Any, /, message: Any = None) -> None:
    """Every element holds, or the launch ends."""
    holds = as_scalar(condition)
    determined(holds, "an assertion")
    if holds.dtype is not dtypes.bool_:
        raise violation("types", f"an assertion of {holds.dtype}", expected="booleans")
    if not bool(holds.values.all()):
        raise violation("assertion", str(message or "an assertion does not hold"))


def static_assert(condition: Any, message: Any = None, /) -> None:
    """A constant condition."""
    if isinstance(condition, Tile) or not condition:
        raise violation("assertion", str(message or "a static assertion does not hold"))


def ensure_constant(value: Any, /) -> Any:
    """`value`, which has to be a constant."""
    if isinstance(value, Tile):
        raise violation("tile", "a value known only at run time", expected="a constant")
    return value


def static_iter(iterable: Any) -> Iterator[Any]:
    """The elements of a constant iterable, each a constant."""
    if isinstance(iterable, _Range):
        return iter(builtins.range(*(constant_int(bound, "a bound of static_iter") for bound in iterable.bounds)))
    return iter(iterable)


def _print(*args: Any, **kwargs: Any) -> None:
    """Python's print; in a kernel, tiles by their values."""
    builtins.print(*(a.values.tolist() if isinstance(a, Tile) else a for a in args), **kwargs)


def printf(format: str, *args: Any) -> None:  # noqa: A002 - its name in cuda.tile
    """C's printf of scalars."""
    builtins.print(format % tuple(a.values.tolist() if isinstance(a, Tile) else a for a in args), end="")


def _nothing(*_: Any, **__: Any) -> None:
    """An order of launches that one thread keeps anyway."""


def _function(function: Any = None, /, **_: Any) -> Any:
    """ct.function: a function of kernels is a function."""
    return function if function is not None else lambda f: f


def _members() -> dict[str, Any]:
    members: dict[str, Any] = {d.name: d for d in dtypes.ALL}
    named = "add sub mul truediv floordiv cdiv mod pow atan2 minimum maximum"
    members |= {name: _binary(name) for name in named.split()}
    members |= {f"bitwise_{n.strip('_')}": _binary(n) for n in ("and_", "or_", "xor", "lshift", "rshift")}
    comparisons = dict(greater="gt", greater_equal="ge", less="lt", less_equal="le", equal="eq", not_equal="ne")
    members |= {name: _binary(short) for name, short in comparisons.items()}
    members |= {name: elementwise.function(name) for name in elementwise.FUNCTIONS}
    members |= {name: reductions.reduction(name) for name in ("sum", "prod", "max", "min")}
    members |= {name: reductions.extreme_index(name) for name in ("argmax", "argmin")}
    members |= {name: reductions.running_total(name) for name in ("cumsum", "cumprod")}
    for module, names in {
        access: "load store",
        gathering: "gather scatter load_advanced_indexing store_advanced_indexing Slice",
        arrays: "Array TiledView num_tiles assume_divisible_by",
        atomics: "atomic_cas atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg",
        enums: "PaddingMode RoundingMode MemoryOrder MemoryScope",
        launching: "ConstantAnnotation ArrayAnnotation ListAnnotation Constant IndexedWithInt64 ScalarInt64",
        products: "mma matmul mma_scaled",
        reductions: "reduce scan",
        shapes: "arange astile astype bitcast broadcast_to cat expand_dims extract full insert ones pack_to_bytes "
        "permute reshape transpose unpack_from_bytes zeros",
        elementwise: "floor ceil isnan",
    }.items():
        members |= {name: getattr(module, name) for name in names.split()}
    return members | dict(
        DType=dtypes.DType, Tile=Tile, Scalar=Scalar, abs=elementwise.absolute, where=elementwise.where,
        negative=_unary(arithmetic.negative, operator.neg), bitwise_not=_unary(arithmetic.invert, _opposite),
        bid=bid, num_blocks=num_blocks, divmod=divmod_, assert_=assert_, static_assert=static_assert,
        static_eval=lambda value: value, static_iter=static_iter, ensure_constant=ensure_constant,
        print=_print, printf=printf, function=_function, ByTarget=lambda **targets: targets,
        grid_dependency_control_wait=_nothing, grid_dependency_control_launch_dependents=_nothing,
    )  # fmt: skip


class _Range:
    """range() in a kernel: its numbers are known only at run time."""

    def __init__(self, *bounds: Any) -> None:
        self.bounds = bounds
        dtype = dtypes.int32
        for bound in bounds:
            dtype = dtypes.promote(dtype, as_scalar(bound).dtype)
        self.dtype = dtype
        self.numbers = builtins.range(*(integer(bound, "a bound of range") for bound in bounds))
        if self.numbers.step <= 0:
            raise violation("types", f"range in steps of {self.numbers.step}", expected="positive steps")
        # the step behind the last is computed too, also of a loop that is never entered: where it wraps, the loop does
        # not end (cuda-tile 1.7.0 on an H200, from 2**31 - 1 to 0)
        behind = max([self.numbers.start, *self.numbers[-1:]]) + self.numbers.step
        if behind > dtype.range[1]:
            raise violation(
                "overflow",
                f"range({self.numbers.start}, {self.numbers.stop}): the step behind it leaves {dtype}",
                expected=f"at most {dtype.range[1]}",
            )

    def __iter__(self) -> Iterator[Scalar]:
        return (Scalar(n, self.dtype) for n in self.numbers)


def _outside(name: str, inside: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin that means something else inside a kernel."""
    usual = getattr(builtins, name)

    def apply(*args: Any, **kwargs: Any) -> Any:
        return (inside if running() is not None else usual)(*args, **kwargs)

    return apply


def _fold(name: str) -> Callable[..., Any]:
    usual = getattr(builtins, name[:3])

    def apply(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or not any(isinstance(a, Tile) for a in args):
            return usual(*args, **kwargs)
        return arithmetic.binary(name, *args)

    return apply


def own_builtins() -> dict[str, Any]:
    """The builtins of an interpreted module, which is known by them."""
    inside: dict[str, Callable[..., Any]] = dict(
        range=_Range, min=_fold("minimum"), max=_fold("maximum"), abs=elementwise.absolute, print=_print, divmod=divmod_
    )
    return vars(builtins) | {name: _outside(name, function) for name, function in inside.items()} | {MARK: True}
