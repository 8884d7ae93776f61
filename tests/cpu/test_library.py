"""The operators as torch sees them: compiled whole, exported, refused with gradients, one beside another."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import generate, lock, spec  # noqa: E402
from ssmgen.loading import interpreted  # noqa: E402

SPEC = """\
schema: 1
model: {{name: {name}, source: table}}
operators:
  mamba_chunk_scan_combined:
    shape: {{heads: 4, groups: 2, head_dim: 16, state: 16}}
    dtypes: {{x: float32, dt: float32, chunk_state: float32, state: float32}}
    options: {{D: per_head, z: {z}, dt_bias: true, dt_softplus: true, dt_limit: runtime, packed: true}}
    routes:
      all: {{when: "B >= 1", plan: three_stage}}
      packed: {{when: "B >= 1", plan: packed}}
targets: [sm_90]
"""


def _spec(name: str, z: str = "none") -> spec.Spec:
    return spec.loads(SPEC.format(name=name, z=z), Path(f"{name}.yaml"))


def _interpreted(name: str, z: str = "none") -> ModuleType:
    value = _spec(name, z)
    return interpreted(value, lock.derive(value, value.targets))


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return _interpreted("small")


def _arguments(tokens: int, *, packed: bool = False, batch: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)

    def normal(*size: int) -> Any:
        return torch.randn(*size, generator=generator)

    given = dict(
        x=normal(batch, tokens, 4, 16),
        dt=normal(batch, tokens, 4),
        A=-torch.rand(4, generator=generator),
        B=normal(batch, tokens, 2, 16),
        C=normal(batch, tokens, 2, 16),
        D=normal(4),
        dt_bias=normal(4),
    )
    if packed:
        given["cu_seqlens"] = torch.tensor([0, tokens // 3, tokens], dtype=torch.int32)
    return given


def _call(kernels: ModuleType, **given: Any) -> Any:
    more = dict(return_varlen_states=True, state_dtype=torch.bfloat16) if "cu_seqlens" in given else {}
    # something on either side, so that the operator stands inside a graph
    given["x"] = given["x"] * 2.0
    out, *states = kernels.mamba_chunk_scan_combined(
        **given, chunk_size=64, dt_softplus=True, return_final_states=True, **more
    )
    return out + 1.0, *states


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_whole_and_for_every_length(kernels: ModuleType, packed: bool) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda **given: _call(kernels, **given), fullgraph=True, backend=backend, dynamic=True)
    for tokens in (40, 41, 97):
        given = _arguments(tokens, packed=packed)
        for actual, expected in zip(compiled(**given), _call(kernels, **given), strict=True):
            assert actual.dtype == expected.dtype
            assert torch.equal(actual, expected)
    assert len(graphs) == 1, "a new length was compiled anew"
    assert kernels._operator in {node.target for node in graphs[0].graph.nodes}


@pytest.mark.parametrize("packed", [False, True])
def test_through_the_autograd_dispatcher(kernels: ModuleType, packed: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda **given: _call(kernels, **given), fullgraph=True, backend="aot_eager")
    given = _arguments(50, packed=packed)
    for actual, expected in zip(compiled(**given), _call(kernels, **given), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 33), (1, 0), (1, 1), (1, 33), (2, 1), (2, 33)])
def test_schema_and_fake_kernel(kernels: ModuleType, batch: int, tokens: int) -> None:
    given = _arguments(tokens, batch=batch)
    if given["x"].numel():
        # a slice of something wider: what the fake kernel says of strides must hold
        given["x"] = torch.cat([given["x"], given["x"]], dim=-1)[..., :16]
    states = torch.randn(batch, 4, 16, 16)
    for initial_states in (None, states):
        arguments = (*given.values(), initial_states, None, None, 0.0, 1.0, False)
        torch.library.opcheck(kernels._operator, arguments)


def test_fake_kernel_of_packed_sequences(kernels: ModuleType) -> None:
    given = _arguments(33)
    for offsets in ([0], [0, 33], [0, 0, 20, 20]):
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
        torch.library.opcheck(kernels._operator, (*given.values(), None, None, cu_seqlens, 0.0, 1.0, False))
    seq_idx = torch.zeros(1, 33, dtype=torch.int32)
    torch.library.opcheck(kernels._operator, (*given.values(), None, seq_idx, None, 0.0, 1.0, False))


def test_exported_as_one_operator(kernels: ModuleType) -> None:
    class Layer(torch.nn.Module):
        def forward(self, given: dict[str, Any]) -> Any:
            return _call(kernels, **given)

    given = _arguments(40)
    exported = torch.export.export(Layer(), (given,))
    assert [n.target for n in exported.graph.nodes if n.target == kernels._operator] == [kernels._operator]
    for actual, expected in zip(exported.module()(given), _call(kernels, **given), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("tracing", ["real", "fake", "jit", "functionalize"])
def test_whoever_traces_meets_the_operator(kernels: ModuleType, tracing: str) -> None:
    """And no graph of the memory that a launch would have filled."""
    given = _arguments(20)

    def scan(x: Any) -> Any:
        return kernels.mamba_chunk_scan_combined(**given | {"x": x}, chunk_size=64, dt_softplus=True)

    expected = scan(given["x"])
    match tracing:
        case "jit":
            traced = torch.jit.trace(scan, (given["x"],))
        case "functionalize":
            traced = torch.func.functionalize(scan)
        case _:
            traced = torch.fx.experimental.proxy_tensor.make_fx(
                scan, tracing_mode=tracing, _allow_non_fake_inputs=True
            )(given["x"])
            assert kernels._operator in {node.target for node in traced.graph.nodes}
    assert torch.equal(traced(given["x"]), expected)


class TestGradients:
    """There is no backward: said by name, wherever one would be missed."""

    @pytest.mark.parametrize("name", ["x", "dt", "A", "B", "C", "D", "dt_bias"])
    def test_eager(self, kernels: ModuleType, name: str) -> None:
        given = _arguments(20)
        given[name].requires_grad_()
        with pytest.raises(ValueError, match=rf"^{name}: requires grad, but there is no backward"):
            kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True)
        with torch.no_grad():
            kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True)

    @pytest.mark.parametrize("name", ["x", "D"])
    def test_of_a_parameter(self, kernels: ModuleType, name: str) -> None:
        given = _arguments(20)
        given[name] = torch.nn.Parameter(given[name])
        with pytest.raises(ValueError, match=rf"^{name}: requires grad, but there is no backward"):
            kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True)
        with torch.no_grad():
            kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True)

    def test_of_forward_mode(self, kernels: ModuleType) -> None:
        given = _arguments(20)
        with torch.autograd.forward_ad.dual_level():
            given["dt"] = torch.autograd.forward_ad.make_dual(given["dt"], torch.ones_like(given["dt"]))
            with pytest.raises(ValueError, match=r"^dt: has a tangent, but there is no derivative"):
                kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True)

    def test_compiled(self, kernels: ModuleType) -> None:
        torch._dynamo.reset()
        given = _arguments(20)
        given["x"].requires_grad_()
        compiled = torch.compile(lambda **given: _call(kernels, **given), fullgraph=True, backend="aot_eager")
        with pytest.raises(Exception, match="mamba_chunk_scan_combined: an input requires grad, but there is no back"):
            compiled(**given)[0].sum().backward()

    def test_through_the_operator(self, kernels: ModuleType) -> None:
        given = _arguments(20)
        given["B"].requires_grad_()
        out, _ = kernels._operator(*given.values(), None, None, None, 0.0, 1.0, False)
        with pytest.raises(ValueError, match="an input requires grad, but there is no backward"):
            out.sum().backward()


NO_RULE = r"{}: is batched by vmap, for which there is no rule; x has an axis for batches"
NO_TANGENT = r"{}: has a tangent, but there is no derivative"
NO_GRADIENT = r"{}: requires grad, but there is no backward"
TRANSFORMS = {
    "vmap": (lambda f, t: torch.vmap(f)(torch.stack([t] * 2)), NO_RULE),
    "jvp": (lambda f, t: torch.func.jvp(f, (t,), (t,)), NO_TANGENT),
    "linearize": (torch.func.linearize, NO_TANGENT),
    "jacfwd": (lambda f, t: torch.func.jacfwd(f)(t), NO_TANGENT),
    "grad": (lambda f, t: torch.func.grad(lambda t: f(t).sum())(t), NO_GRADIENT),
    "vjp": (torch.func.vjp, NO_GRADIENT),
    "jacrev": (lambda f, t: torch.func.jacrev(f)(t), NO_GRADIENT),
    "vmap of grad": (
        lambda f, t: torch.vmap(torch.func.grad(lambda t: f(t).sum()))(torch.stack([t] * 2)),
        NO_GRADIENT,
    ),
    "grad of vmap": (
        lambda f, t: torch.func.grad(lambda t: torch.vmap(f)(torch.stack([t] * 2)).sum())(t),
        NO_RULE,
    ),
}


class TestTransforms:
    """Those of torch.func: refused by name where the operator would have to know more, harmless elsewhere."""

    @pytest.mark.parametrize("name", ["x", "dt", "A", "C", "dt_bias"])
    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_eager(self, kernels: ModuleType, name: str, transform: str) -> None:
        given = _arguments(20)
        apply, message = TRANSFORMS[transform]
        with pytest.raises(ValueError, match="^" + message.format(name)):
            apply(lambda t: self._scan(kernels, given, **{name: t}), given[name])

    @pytest.mark.parametrize("transform", ["vmap", "jvp", "grad"])
    def test_compiled(self, kernels: ModuleType, transform: str) -> None:
        torch._dynamo.reset()
        given = _arguments(20)
        apply, message = TRANSFORMS[transform]
        compiled = torch.compile(lambda dt: apply(lambda t: self._scan(kernels, given, dt=t), dt), backend="eager")
        with pytest.raises(Exception, match=message.format("dt")):
            compiled(given["dt"])

    def test_the_operator_itself_drops_no_tangent(self, kernels: ModuleType) -> None:
        given = _arguments(20)
        with torch.autograd.forward_ad.dual_level():
            given["B"] = torch.autograd.forward_ad.make_dual(given["B"], torch.ones_like(given["B"]))
            with pytest.raises(ValueError, match="^" + NO_TANGENT.format("B")):
                kernels._operator(*given.values(), None, None, None, 0.0, 1.0, False)

    @pytest.mark.parametrize("transform", ["vmap", "jvp", "grad"])
    def test_of_what_the_operator_is_not_given(self, kernels: ModuleType, transform: str) -> None:
        given = _arguments(20)
        expected = self._scan(kernels, given)
        seen = []

        def function(t: Any) -> Any:
            out = self._scan(kernels, given)
            seen.append(torch.equal(out, expected))
            return out.sum() * t.sum()

        TRANSFORMS[transform][0](function, torch.ones(3))
        assert seen == [True]

    def test_tangents_beside_a_call_do_not_disturb_it(self, kernels: ModuleType) -> None:
        given = _arguments(20)
        expected = self._scan(kernels, given)
        with torch.autograd.forward_ad.dual_level():
            assert torch.equal(self._scan(kernels, given), expected)

    @staticmethod
    def _scan(kernels: ModuleType, given: dict[str, Any], **more: Any) -> Any:
        return kernels.mamba_chunk_scan_combined(**given | more, chunk_size=64, dt_softplus=True)


class TestSideBySide:
    def test_two_models(self, kernels: ModuleType) -> None:
        other = _interpreted("gated", z="silu")
        assert kernels._operator.namespace != other._operator.namespace
        given = _arguments(40)
        gate = torch.randn_like(given["x"])
        plain = _call(kernels, **given)[0] - 1.0
        gated = _call(other, **given, z=gate)[0] - 1.0
        torch.testing.assert_close(gated, plain * torch.nn.functional.silu(gate), rtol=1e-4, atol=1e-5)

    def test_the_same_model_twice(self, kernels: ModuleType) -> None:
        again = _interpreted("small")
        assert again._operator.namespace == f"{kernels._operator.namespace}_2"
        given = _arguments(40)
        for actual, expected in zip(_call(again, **given), _call(kernels, **given), strict=True):
            assert torch.equal(actual, expected)

    @pytest.fixture
    def copied(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
        """One package under two names, imported as a user imports it; its kernels need cuTile only when launched."""
        pytest.importorskip("cuda.tile")
        value = _spec("copied")
        for path, text in generate.fileset(value, lock.derive(value, value.targets)).items():
            file = tmp_path / "one" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        shutil.copytree(tmp_path / "one/copied", tmp_path / "two")
        monkeypatch.syspath_prepend(str(tmp_path / "one"))
        monkeypatch.syspath_prepend(str(tmp_path))
        yield importlib.import_module("copied"), importlib.import_module("two")
        for name in [name for name in sys.modules if name.partition(".")[0] in ("copied", "two")]:
            del sys.modules[name]

    def test_a_copied_package(self, copied: tuple[ModuleType, ModuleType]) -> None:
        one, two = copied
        assert one._operator is not two._operator
        for package in copied:
            # each traces, and each refuses a CPU tensor under its own name
            with torch.device("meta"):
                out, states = package._operator(*_arguments(9).values(), None, None, None, 0.0, 1.0, False)
            assert (out.shape, states.shape) == ((1, 9, 4, 16), (1, 4, 16, 16))
            with pytest.raises(ValueError, match="x: found on cpu, expected on a CUDA device"):
                package.mamba_chunk_scan_combined(**_arguments(9), chunk_size=64, dt_softplus=True)
