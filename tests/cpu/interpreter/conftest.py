"""Kernels written as text, loaded by the interpreter and launched on CPU tensors."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import interpreter  # noqa: E402
from ssmgen.errors import SanitizerError  # noqa: E402
from ssmgen.interpreter.values import Tile  # noqa: E402

HERE = "# here"


class Kernels:
    """Files of kernels in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self.file = folder

    def load(self, text: str) -> ModuleType:
        """The module of `text`, after an import of cuda.tile."""
        self.file = self.folder / f"kernels_{next(self._numbers)}.py"
        self.file.write_text("import cuda.tile as ct\n" + textwrap.dedent(text), encoding="utf-8")
        return interpreter.load_file(self.file)

    def __call__(self, text: str, *arguments: Any, grid: Sequence[int] = (1,)) -> ModuleType:
        """The module of `text`, whose `kernel` was launched on the arguments."""
        module = self.load(text)
        module.ct.launch(None, grid, module.kernel, arguments)
        return module

    def value(self, expression: str, before: str = "", /, **operands: Any) -> Any:
        """What `expression` is inside a kernel, after the statements `before`.

        Tensors are there as whole tiles, under their names; everything else is a constant.
        """
        arrays = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
        constants = [name for name in operands if name not in arrays]
        parameters = [f"{name}_array" for name in arrays] + [f"{name}: ct.Constant" for name in constants]
        loads = [f"{n} = ct.load({n}_array, {(0,) * t.dim()}, {tuple(t.shape)})" for n, t in arrays.items()]
        lines = [*loads, *textwrap.dedent(before).splitlines(), f"out.append({expression})"]
        head = f"\n@ct.kernel\ndef kernel({', '.join([*parameters, 'out: ct.Constant'])}):\n"
        results: list[Any] = []
        values = [*arrays.values(), *(operands[name] for name in constants)]
        self(head + textwrap.indent("\n".join(lines), "    ") + "\n", *values, results)
        (result,) = results
        return result

    def error(self, text: str, *arguments: Any, grid: Sequence[int] = (1,)) -> SanitizerError:
        """The error that the launch of `text` ends in, at the line that ends in `# here`, if one does."""
        with pytest.raises(SanitizerError) as caught:
            self(text, *arguments, grid=grid)
        error = caught.value
        lines = self.file.read_text().splitlines()
        marked = [number for number, line in enumerate(lines, 1) if line.endswith(HERE)]
        if marked:
            assert error.where is not None
            assert (Path(error.where.path), [error.where.line]) == (self.file, marked), str(error)
        return error

    def refused(self, expression: str, before: str = "", /, **operands: Any) -> str:
        """The rule that `expression` breaks inside a kernel."""
        with pytest.raises(SanitizerError) as caught:
            self.value(expression, before, **operands)
        assert caught.value.where is not None
        assert Path(caught.value.where.path) == self.file
        return caught.value.rule


@pytest.fixture
def run(tmp_path: Path) -> Kernels:
    """Kernels of a test, in a folder of its own."""
    return Kernels(tmp_path)


@pytest.fixture
def same() -> Callable[[Any, Any], None]:
    """Asserts that a tile holds exactly what a tensor, or nested lists, hold; NaN equals NaN."""

    def check(tile: Any, expected: Any) -> None:
        assert isinstance(tile, Tile), tile
        wanted = expected if isinstance(expected, torch.Tensor) else torch.tensor(expected, dtype=tile.dtype.holds)
        assert tile.shape == tuple(wanted.shape)
        torch.testing.assert_close(tile.values, wanted.to(tile.dtype.holds), rtol=0, atol=0, equal_nan=True)

    return check
