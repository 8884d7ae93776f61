"""Property tests of generated kernels, for your repository's test suite and for ours: Hypothesis draws whole problems.

    from ssmgen.testing import kernel_tests

    test_kernels = kernel_tests()

is a whole test module: every spec of the project, calls drawn by Hypothesis, through the CPU interpreter and its
sanitizer, against the fp64 recurrence. It needs torch, hypothesis and pytest, and no GPU. A failing draw is shrunk, and
its message ends with the command that shows it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssmgen.verify import problems as described
from ssmgen.verify.problems import Call, Drawn, Problem

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from ssmgen.verify.check import Subject
    from ssmgen.verify.run import Row

T = TypeVar("T", Drawn, Call)

_compiled_classes: set[tuple[str, bool, bool]] = set()


def models(**fixed: Any) -> SearchStrategy[Drawn]:
    """Models that no spec has: sizes off every power of two, group ratios, dtypes, options, schedules."""
    return _fields(Drawn, fixed)


def calls(**fixed: Any) -> SearchStrategy[Call]:
    """Calls: batch, tokens, initial states, sequences in a row, decay regime by name, layout.

    `fixed` sets fields, or their strategies.
    """
    return _fields(Call, fixed)


def problems(**fixed: Any) -> SearchStrategy[Problem]:
    """Drawn models with a call each; `fixed` as for `calls`, for both."""
    from hypothesis import strategies as st

    own = {f.name for f in fields(Drawn)}
    of_model = {name: value for name, value in fixed.items() if name in own}
    of_call = {name: value for name, value in fixed.items() if name not in own}
    return st.builds(
        lambda drawn, call: Problem(drawn, call.for_model(drawn.operator)), models(**of_model), calls(**of_call)
    )


def _fields(kind: type[T], fixed: dict[str, Any]) -> SearchStrategy[T]:
    from hypothesis import strategies as st

    # the simpler option first: Hypothesis shrinks towards it
    drawn = {f.name: st.sampled_from(described.options(f)) for f in fields(kind) if f.name not in fixed}
    given = {name: v if isinstance(v, st.SearchStrategy) else st.just(v) for name, v in fixed.items()}
    return st.builds(kind, **drawn, **given)


def check(problem: Problem, *, compile: bool = False) -> None:  # noqa: A002 - what it does
    """Generate, interpret and compare one drawn problem; AssertionError names what is wrong and the command for it.

    With `compile`, the first model of each class (activation dtype, segmented or not, packed or not) is compiled too.
    """
    from ssmgen import build
    from ssmgen.verify import run

    (row,) = run.drawn([problem], run.Settings())
    _pass(row)
    drawn = problem.drawn
    if compile and drawn is not None and (drawn.x, drawn.segments > 1, drawn.packed) not in _compiled_classes:
        build.check(drawn.spec(), drawn.lock())
        _compiled_classes.add((drawn.x, drawn.segments > 1, drawn.packed))


def kernel_tests(*specs: str, examples: int = 5, compile: bool = True) -> Callable[..., None]:  # noqa: A002
    """A pytest test of the given specs, by name or path, or of all of the project around the current folder.

    `examples` calls a spec, drawn by Hypothesis; with `compile`, the kernels of its first target are compiled once as
    well, where cuTile's compiler is installed: what only the compiler refuses, the interpreter cannot see.
    """
    import pytest
    from hypothesis import given, settings
    from hypothesis import strategies as st

    from ssmgen import paths, repository

    project = paths.project()
    found = {path.stem: path for path in repository.spec_paths(specs, project)}

    @pytest.mark.parametrize("spec", sorted(found))
    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def test_kernels(spec: str, data: st.DataObject) -> None:
        subject = _subject(found[spec])
        if subject is None:
            pytest.skip(f"{spec}: its operators have no kernels yet")
        chunk = subject.chunks.unpacked
        tokens = st.sampled_from([1, chunk - 1, chunk, chunk + 1, 2 * chunk + 3])
        call = data.draw(calls(batch=1, tokens=tokens)).for_model(subject.operator)
        _pass(_row(found[spec], call))
        if compile and has_compiler():
            _compile(found[spec])

    ready: Callable[..., None] = test_kernels
    return ready


@cache
def _subject(path: Path) -> Subject | None:
    from ssmgen.verify import run

    (loaded,) = _load(path)
    return run.committed(loaded, run.Settings()) if loaded.has_kernels else None


def _load(path: Path) -> tuple[Any, ...]:
    from ssmgen import repository

    return repository.open_specs([str(path)]).loaded


def _row(path: Path, call: Call) -> Row:
    from ssmgen.verify import run

    subject = _subject(path)
    assert subject is not None
    return run.row(path.stem, subject, Problem(None, call), run.Again(("ssmgen", "verify", str(path)), run.Settings()))


def _pass(row: Row) -> None:
    # the message says it all; pytest need not show this function
    __tracebackhide__ = True
    if row.failure is not None:
        raise AssertionError(f"{row.model}: {row.problem}: {row.failure}\n  again:    {row.command}")


@cache
def has_compiler() -> bool:
    """Whether cuTile's compiler is installed, in the version that is needed."""
    from ssmgen.compiler import check_compiler
    from ssmgen.errors import CompilerError

    try:
        check_compiler()
    except CompilerError:
        return False
    return True


@cache
def _compile(path: Path) -> None:
    from ssmgen import build

    (loaded,) = _load(path)
    build.check(loaded.spec, loaded.schedules)
