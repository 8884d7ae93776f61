"""What a kernel's Python means: builtins, loops, constants, launches, and what is counted."""

from __future__ import annotations

import builtins
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import interpreter  # noqa: E402
from ssmgen.errors import InterpreterError, LaunchError, SanitizerError  # noqa: E402
from ssmgen.interpreter import files  # noqa: E402
from ssmgen.interpreter.blocks import Counts  # noqa: E402
from ssmgen.interpreter.launching import Launcher  # noqa: E402


def seen(values: list[Any]) -> list[tuple[str, Any]]:
    return [(v.dtype.name, v.value) if hasattr(v, "value") else (type(v).__name__, v) for v in values]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("4", [("int32", n) for n in range(4)]),
        ("n", [("int32", n) for n in range(3)]),
        ("1, n * 2, 2", [("int32", n) for n in (1, 3, 5)]),
        ("ct.int64(0), n", [("int64", n) for n in range(3)]),
        ("2**31 - 1, 2**31 + 1", [("int64", n) for n in (2**31 - 1, 2**31)]),
        ("n, n", []),
        ("5, n", []),
    ],
)
def test_a_loop_counts_at_run_time(run: Any, bounds: str, expected: list[Any]) -> None:
    out: list[Any] = []
    run(f"@ct.kernel\ndef kernel(n, out: ct.Constant):\n    for k in range({bounds}):\n        out.append(k)\n", 3, out)
    assert seen(out) == expected


@pytest.mark.parametrize(
    ("iterable", "expected"),
    [
        ("range(3)", [0, 1, 2]),
        ("range(1, 7, 3)", [1, 4]),
        ("(2, 'a')", [2, "a"]),
        ("enumerate((5, 6))", [(0, 5), (1, 6)]),
        ("zip((1, 2), (3, 4))", [(1, 3), (2, 4)]),
    ],
)
def test_static_iter_hands_out_constants(run: Any, iterable: str, expected: list[Any]) -> None:
    out: list[Any] = []
    run(
        f"@ct.kernel\ndef kernel(out: ct.Constant):\n    for k in ct.static_iter({iterable}):\n        out.append(k)\n",
        out,
    )
    assert [(type(v), v) for v in out] == [(type(v), v) for v in expected]


def test_builtins_are_pythons_own_outside_a_kernel(run: Any) -> None:
    module = run.load(
        """
        def host(values):
            return list(range(3)), min(values), max(values, key=lambda v: -v), abs(-2), divmod(7, 2), sum(values)
        """
    )
    assert module.host([3, 1, 2]) == ([0, 1, 2], 1, 1, 2, (3, 1), 6)
    assert builtins.range is range
    assert "__ssmgen_interpreted__" not in vars(builtins)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("min(n, 5)", ("int32", 3)),
        ("max(n, 5)", ("int32", 5)),
        ("max(2, n)", ("int32", 3)),
        ("abs(-n)", ("int32", 3)),
        ("divmod(n, 2)[0]", ("int32", 1)),
        ("divmod(-n, 2)[1]", ("int32", 1)),
        ("sum((1, 2))", ("int", 3)),
        ("len((1, 2))", ("int", 2)),
        ("ct.bid(0)", ("int32", 0)),
        ("ct.num_blocks(0)", ("int32", 1)),
        ("n if n > 2 else 7", ("int32", 3)),
        ("n == 3 and 4", ("int", 4)),
        ("ct.int16(5)", ("int16", 5)),
        ("ct.int8(n)", ("int8", 3)),
        ("int('4')", ("int", 4)),
        ("ct.static_eval(2 + 2)", ("int", 4)),
        ("f(n)", ("int32", 6)),
        ("(lambda v: v - 1)(n)", ("int32", 2)),
        ("not n", ("bool", False)),
        ("1 < n < 4", ("bool_", True)),
    ],
)
def test_expressions(run: Any, expression: str, expected: Any) -> None:
    out: list[Any] = []
    text = f"""
    @ct.function
    def f(v):
        return v * 2

    @ct.kernel
    def kernel(n, out: ct.Constant):
        out.append({expression})
    """
    run(text, 3, out)
    assert seen(out) == [expected]


def test_the_grid(run: Any) -> None:
    out: list[Any] = []
    text = """
    @ct.kernel
    def kernel(out: ct.Constant):
        out.append(tuple(ct.bid(k) for k in (0, 1, 2)) + tuple(ct.num_blocks(k) for k in (0, 1, 2)))
    """
    run(text, out, grid=(2, 3))
    indices = [tuple(v.value for v in each) for each in out]
    assert sorted(indices) == sorted((x, y, 0, 2, 3, 1) for x in range(2) for y in range(3))


@pytest.mark.parametrize("grid", [(), (0,), (1, 1, 1, 1), (1, 65536), (-1,)])
def test_grids_that_no_gpu_launches(run: Any, grid: Any) -> None:
    assert run.error("@ct.kernel\ndef kernel():\n    pass\n", grid=grid).rule == "shapes"


def test_kernels_are_only_launched(run: Any) -> None:
    module = run.load("@ct.kernel(occupancy=2)\ndef kernel(x):\n    pass\n")
    for call in (lambda: module.kernel(1), lambda: module.ct.launch(None, (1,), print, ())):
        with pytest.raises(InterpreterError):
            call()
    module.ct.launch(None, (1,), module.kernel.replace_hints(occupancy=1), (1,))
    with pytest.raises(InterpreterError, match="a launch inside a kernel"):
        run("@ct.kernel\ndef kernel(this: ct.Constant):\n    ct.launch(None, (1,), kernel, ())\n", None)
    with pytest.raises(InterpreterError, match=r"ct\.load\(\) outside a kernel"):
        run.load("ct.load(None, 0, ())\n")


def test_what_is_not_known_is_refused_by_name_and_line(run: Any) -> None:
    module = run.load("@ct.kernel\ndef kernel():\n    ct.no_such_thing.either(1)\n")
    with pytest.raises(InterpreterError, match=r"ct\.no_such_thing\.either") as caught:
        module.ct.launch(None, (1,), module.kernel, ())
    assert (Path(caught.value.where.path), caught.value.where.line) == (run.file, 4)


def test_a_file_may_import_cutile_in_any_form(run: Any) -> None:
    module = run.load("import cuda.tile\nfrom cuda.tile import float32 as f\nfrom cuda import tile\n")
    assert module.f is module.tile.float32 is module.cuda.tile.float32 is module.ct.float32


def test_an_error_of_the_kernels_own_is_passed_on(run: Any) -> None:
    module = run.load("@ct.kernel\ndef kernel():\n    {}['missing']\n")
    with pytest.raises(KeyError):
        module.ct.launch(None, (1,), module.kernel, ())
    # and leaves no kernel running
    run("@ct.kernel\ndef kernel():\n    pass\n")


def test_printing(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("@ct.kernel\ndef kernel(n):\n    print('n', n, ct.arange(2, dtype=ct.int32))\n    ct.printf('%d\\n', n)\n", 3)
    assert capsys.readouterr().out == "n 3 [0, 1]\n3\n"


def test_a_message_of_an_assertion(run: Any) -> None:
    assert "too small" in str(run.error("@ct.kernel\ndef kernel(n):\n    ct.assert_(n > 3, 'too small')  # here\n", 3))
    assert run.error("@ct.kernel\ndef kernel(n):\n    ct.assert_(n)  # here\n", 3).rule == "types"


def test_counts(run: Any) -> None:
    text = """
    @ct.kernel
    def kernel(x, y, at):
        t = ct.load(x, (0, 0), (4, 4), padding_mode=ct.PaddingMode.ZERO)
        p = ct.mma(t, t, ct.zeros((4, 4), ct.float32))
        ct.store(y, (0, 0), ct.exp(p))
        ct.gather(x, (ct.arange(4, dtype=ct.int32), 0))
        ct.scatter(y, (0, ct.arange(2, dtype=ct.int32) + 2), 0.0)
        ct.atomic_add(at, 0, 1)
    """
    x, y, at = torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(3, 3), torch.zeros(1, dtype=torch.int32)
    module = run(text, x, y, at)
    once = Counts(read_bytes=12 * 2 + 3 * 2 + 4, written_bytes=9 * 4 + 4 + 4, flops=2 * 4**3, exponentials=16)
    assert module.ct_launcher.counts == {"kernel": once}
    module.ct.launch(None, (1,), module.kernel, (x, y, at))
    counts = module.ct_launcher.counts["kernel"]
    assert (counts.flops, counts.read_bytes) == (2 * once.flops, 2 * once.read_bytes)


def test_a_trace_counts_each_element_once() -> None:
    text = """
    import cuda.tile as ct
    @ct.kernel
    def kernel(x, y):
        t = ct.load(x, (0,), (4,)) + ct.load(x, (0,), (4,)) + ct.load(x, (1,), (4,))
        ct.store(y, (ct.bid(0),), t)
    """
    launcher = Launcher(trace=True)
    package = files.load_package({"__init__.py": "\n".join(line[4:] for line in text.splitlines())}, "traced", launcher)
    package.ct.launch(None, (2,), package.kernel, (torch.zeros(8), torch.zeros(8)))
    counts = launcher.counts["kernel"]
    assert (counts.read_bytes, counts.written_bytes) == (2 * 3 * 16, 2 * 16)
    assert (counts.distinct_bytes(), counts.distinct_bytes(frozenset({"x"}))) == (32 + 32, 32)


def test_a_package_of_texts() -> None:
    texts = {
        "__init__.py": "import cuda.tile as ct\nfrom .kernels.one import kernel\n",
        "kernels/one.py": "import cuda.tile as ct\nfrom ..sizes import SIZE\n@ct.kernel\ndef kernel(x):\n"
        "    ct.load(x, (SIZE,), (4,))\n",
        "sizes.py": "SIZE = 7\n",
    }
    package = files.load_package(texts, "texts", Launcher())
    with pytest.raises(SanitizerError) as caught:
        package.ct.launch(None, (1,), package.kernel, (torch.zeros(8),))
    assert caught.value.where is not None
    assert caught.value.where.path.endswith("/kernels/one.py")
    assert caught.value.where.line == 5
    with pytest.raises((InterpreterError, LaunchError, ModuleNotFoundError)):
        files.load_package({"__init__.py": "from .missing import one\n"}, "broken", Launcher())


def test_launches_in_threads_know_nothing_of_each_other(run: Any) -> None:
    module = run.load("@ct.kernel\ndef kernel(x):\n    ct.store(x, (ct.bid(0),), ct.bid(0).astype(ct.float32))\n")
    arrays = [torch.zeros(64) for _ in range(4)]
    threads = [threading.Thread(target=module.ct.launch, args=(None, (64,), module.kernel, (x,))) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in arrays:
        assert torch.equal(x, torch.arange(64.0))


def test_torch_is_left_as_it_was(run: Any) -> None:
    threads = torch.get_num_threads()
    with interpreter.watch():
        x = torch.zeros(4, requires_grad=True)
        run("@ct.kernel\ndef kernel(x, y):\n    ct.store(y, (0,), ct.load(x, (0,), (4,)))\n", x, torch.empty(4))
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert x.grad is None
