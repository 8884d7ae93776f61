"""The Mamba-2 mixers of transformers: where they are in a model, their shapes, and why one cannot be served.

It imports no module of transformers: a mixer is known by the name of its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from ssmgen.errors import IntegrationError
from ssmgen.integrations import seam
from ssmgen.integrations.seam import Call

# model_type -> the class of its mixers, in transformers.models.TYPE.modeling_TYPE
CLASSES = {
    "bamba": "BambaMixer",
    "falcon_h1": "FalconH1Mixer",
    "granitemoehybrid": "GraniteMoeHybridMambaLayer",
    "mamba2": "Mamba2Mixer",
    "nemotron_h": "NemotronHMamba2Mixer",
    "zamba2": "Zamba2MambaMixer",
}
_KNOWN = {(f"transformers.models.{name}.modeling_{name}", mixer) for name, mixer in CLASSES.items()}
# of a prompt by which a mixer is tried: more than its convolution is wide, and what causal_conv1d takes
_TOKENS = 8
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Shape:
    """What kernels are generated for: the sizes of a mixer, and the dtype of its activations."""

    heads: int
    groups: int
    head_dim: int
    state: int
    dtype: str

    def __str__(self) -> str:
        return f"heads {self.heads}, groups {self.groups}, head_dim {self.head_dim}, state {self.state}, x {self.dtype}"


@dataclass(frozen=True)
class Mixer:
    """A mixer and its `name` in the model; of a mixer on its own, its class."""

    name: str
    module: Any

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its activations, which is that of the projection that makes them."""
        dtype: torch.dtype = self.module.in_proj.weight.dtype
        return dtype

    @property
    def shape(self) -> Shape:
        m = self.module
        return Shape(m.num_heads, m.n_groups, m.head_dim, m.ssm_state_size, str(self.dtype).removeprefix("torch."))


def find(model: Any) -> list[Mixer]:
    """The mixers of `model`, in order; IntegrationError where there is none that is known."""
    modules = list(model.named_modules())
    found = [
        Mixer(name or type(m).__name__, m) for name, m in modules if (type(m).__module__, type(m).__name__) in _KNOWN
    ]
    if found:
        return found
    # every state-space layer has one, so this names the class that decides
    near = sorted({f"{type(m).__module__}.{type(m).__name__}" for _, m in modules if hasattr(m, "A_log")})
    raise IntegrationError(
        f"{type(model).__name__}: it has no Mamba-2 layer that ssmgen knows",
        found=", ".join(near) or "no state-space layer",
        expected=f"transformers' own class for one of {', '.join(sorted(CLASSES))}",
        next="load the model without trust_remote_code" if near else "patch a Mamba-2 model",
    )


def check(model: Any, mixers: list[Mixer]) -> None:
    """IntegrationError for the first thing that no kernels could serve."""
    config = getattr(model, "config", None)
    if getattr(model, "hf_quantizer", None) or getattr(config, "quantization_config", None):
        raise IntegrationError(
            f"{type(model).__name__}: it is quantised",
            found=getattr(config, "quantization_config", None),
            expected="weights in bfloat16, float16 or float32",
            next="load it without quantization_config",
        )
    for mixer in mixers:
        for refusal in _refusals(mixer):
            raise refusal


def _refusals(mixer: Mixer) -> Iterator[IntegrationError]:
    m = mixer.module

    def refusal(what: str, found: object, expected: str, mend: str) -> IntegrationError:
        return IntegrationError(f"{mixer.name}: {what}", found=found, expected=expected, next=mend)

    if seam.hook_of(m) is not None:
        yield refusal("it is patched already", "an earlier patch", "a model that is not", "unpatch(model) first")
    if m.training:
        yield refusal("it is in training mode", "training", "evaluation: there is no backward", "model.eval()")
    weights = dict(m.named_parameters())
    # a plain nn.Parameter is whole; a DTensor, or what a quantiser left, is a class of its own
    if kinds := sorted({type(p).__name__ for p in weights.values()} - {"Parameter"}):
        yield refusal("its weights are not plain tensors", kinds[0], "whole parameters", "load the model unsharded")
    if away := [name for name, p in weights.items() if p.is_meta]:
        yield refusal("its weights are not here", f"{away[0]} on meta", "on a device", "load it without offloading")
    if mixer.dtype not in _DTYPES:
        yield refusal("no kernels have its dtype", mixer.dtype, f"one of {_DTYPES}", "convert the model")


def call_of(mixer: Mixer) -> Call:
    """How the mixer calls its scan, found by trying; IntegrationError where it does not, or cannot be called."""
    m = mixer.module
    hidden = torch.zeros(1, _TOKENS, m.in_proj.in_features, dtype=mixer.dtype, device=m.in_proj.weight.device)
    try:
        call = seam.probe(m, hidden)
    except Exception as e:
        raise IntegrationError(
            f"{mixer.name}: it fails on a prompt of {_TOKENS} tokens, before it calls its scan",
            found=f"{type(e).__name__}: {e}",
            expected="a layer that works without ssmgen",
            next="call the model before it is patched",
        ) from e
    if call is None:
        raise IntegrationError(
            f"{mixer.name}: this version of transformers is not known",
            found=f"transformers {version('transformers')}",
            expected=f"mixers that call {seam.NAME}",
            next="pip install 'ssmgen[transformers]'",
        )
    return call
