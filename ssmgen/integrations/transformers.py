"""Hugging Face models with ssmgen's kernels: the prefill of every Mamba-2 layer is ours, the rest stays the library's.

    from ssmgen.integrations.transformers import patch, unpatch

    patch(model)                      # kernels of a spec that fits, found among the project's and ssmgen's own
    model.generate(**inputs)
    unpatch(model)

It serves Mamba2, NemotronH, Bamba, GraniteMoeHybrid, FalconH1 and Zamba2. Projections, convolution, norms and decode
steps are not touched; the final state of a prefill goes into the library's cache, float32 and (batch, heads, head dim,
state), as its own kernels leave it there. It neither generates nor trains.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ssmgen.errors import IntegrationError
from ssmgen.integrations import mixers, seam
from ssmgen.integrations.mixers import Mixer, Shape
from ssmgen.integrations.seam import Call, Scan


@dataclass(frozen=True)
class Patched:
    """A patched model, the names of its `layers`, and the `kernels` that serve them; leaving a `with` unpatches it."""

    model: Any
    kernels: Any
    layers: tuple[str, ...]

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *raised: object) -> None:
        unpatch(self.model)


def patch(model: Any, kernels: ModuleType | str | Path | None = None, *, interpret: bool = False) -> Patched:
    """Let generated kernels compute the prefill of every Mamba-2 layer of `model`, a transformers model.

    `kernels` is what `ssmgen.load` returned, or what to give it; None takes the first spec of the model's shape and
    dtype, the project's own before those that ssmgen ships. `interpret` runs them on the CPU, slowly.

    A call of the model then needs what the kernels need: evaluation mode, no grad, activations of their dtype. dt goes
    to them in the dtype that they take, where float32 is exact. The library's arguments for packed sequences go
    through, and kernels whose spec has none refuse them.

    Raises IntegrationError for a model, a layer or kernels that do not fit, SpecError for a spec of the project that
    is broken, and what `ssmgen.load` raises; the model is then as it was.
    """
    found = mixers.find(model)
    mixers.check(model, found)
    calls = [mixers.call_of(mixer) for mixer in found]
    if kernels is None or isinstance(kernels, str | Path):
        import ssmgen

        kernels = ssmgen.load(_fitting(found[0]) if kernels is None else kernels, interpret=interpret)
    elif interpret:
        raise IntegrationError(
            "interpret=True beside loaded kernels", expected="one of them", next="ssmgen.load(SPEC, interpret=True)"
        )
    scans = [_scan(mixer, call, kernels) for mixer, call in zip(found, calls, strict=True)]
    for mixer, scan in zip(found, scans, strict=True):
        seam.serve(mixer.module, scan)
    return Patched(model, kernels, tuple(mixer.name for mixer in found))


def unpatch(model: Any) -> None:
    """Give every layer of `model` back to the library; one that is not patched is left alone."""
    for module in model.modules():
        seam.release(module)


def _scan(mixer: Mixer, call: Call, kernels: Any) -> Scan:
    """The kernels in the place of the mixer's scan, once they have been shown to take the arguments of its `call`."""
    operator = getattr(kernels, "mamba_chunk_scan_combined", None)
    if operator is None:
        raise IntegrationError(
            f"{mixer.name}: the kernels have no mamba_chunk_scan_combined",
            found=getattr(kernels, "__name__", kernels),
            expected="what ssmgen.load returns for a Mamba-2 model",
            next=_make(mixer.shape),
        )
    names = frozenset(inspect.signature(operator).parameters)
    refusal: Exception | None = None
    # the checks of the kernels are the only ones there are, so they are asked
    for dt in dict.fromkeys((mixer.dtype, torch.float32)):
        scan = Scan(operator, names, dt)
        try:
            _call_empty(scan, call)
        except (TypeError, ValueError) as e:
            refusal = e
        else:
            return scan
    raise IntegrationError(
        f"{mixer.name}: the kernels do not take its arguments",
        found=refusal,
        expected=f"kernels for {mixer.shape}",
        next=f"convert or move the model, or make kernels for it: {_make(mixer.shape)}",
    )


def _call_empty(scan: Scan, call: Call) -> None:
    """The mixer's call with a cache, but of an empty batch: everything is checked and nothing is launched."""
    x, dt, a, b, c = call.tensors
    with torch.no_grad():
        scan(x[:0], dt[:0], a, b[:0], c[:0], **(call.given | {"return_final_states": True}))


def _fitting(mixer: Mixer) -> str | Path:
    """The first spec of the mixer's shape and dtype: the path of one of the project's, or the name of a shipped one."""
    from ssmgen import paths

    project = paths.project()
    shipped = paths.Project(project.root, paths.committed_specs(), project.generated)
    for path in project.spec_paths():
        if _fits(path, mixer.shape):
            return path
    for path in shipped.spec_paths():
        if _fits(path, mixer.shape):
            return path.stem
    raise IntegrationError(
        f"{mixer.name}: no spec fits it",
        found=mixer.shape,
        expected="a spec of these sizes in " + " or ".join(dict.fromkeys(map(str, (project.specs, shipped.specs)))),
        next=_make(mixer.shape),
    )


def _fits(path: Path, shape: Shape) -> bool:
    from ssmgen import spec

    operator = spec.load(path).operators.mamba_chunk_scan_combined
    if operator is None:
        return False
    sizes, options = operator.shape, operator.options
    found = Shape(sizes.heads, sizes.groups, sizes.head_dim, sizes.state, operator.dtypes.x)
    # the gate is the norm's in these models, and the mixers hand over a bias and one D a head
    plain = options.D == "per_head" and options.z == "none" and options.dt_bias and options.dt_softplus
    return found == shape and plain


def _make(shape: Shape) -> str:
    return f'ssmgen new CONFIG.json, of dtype {shape.dtype}, ssmgen build M, patch(model, "specs/M.yaml")'
