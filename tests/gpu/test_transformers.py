"""A full-size Mamba-2 layer of each architecture of transformers on a real GPU, patched and not.

The library alone runs twice: its torch functions, and with the kernels of mamba_ssm and causal_conv1d where those are
installed. The measure of all three is the torch functions in float32, on the same weights.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ssmgen.integrations import mixers  # noqa: E402
from ssmgen.integrations.transformers import patch  # noqa: E402
from tests.gpu.conftest import load  # noqa: E402
from tests.scans import checked  # noqa: E402

WIDE = dict(mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=128, mamba_expand=2)
# the committed kernels, and the sizes of the model they are for or, for Bamba 9B, of one with the same layer
LAYERS = {
    "mamba2": ("mamba2_2p7b", dict(hidden_size=2560, num_heads=80, head_dim=64, n_groups=1, state_size=128)),
    "nemotron_h": (
        "nemotron_h_8b",
        dict(hidden_size=4096, mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128),
    ),
    "bamba": ("granite_4p0_h_small", dict(hidden_size=4096) | WIDE),
    "granitemoehybrid": ("granite_4p0_h_small", dict(hidden_size=4096) | WIDE),
    "falcon_h1": (
        "falcon_h1_7b",
        dict(hidden_size=3072, mamba_n_heads=24, mamba_d_head=128, mamba_n_groups=1, mamba_d_state=256)
        | dict(mamba_d_ssm=3072, mamba_rms_norm=True, mamba_norm_before_gate=False),
    ),
    "zamba2": (
        "zamba2_7b",
        dict(hidden_size=3584, n_mamba_heads=112, mamba_headdim=64, mamba_ngroups=2, mamba_d_state=64),
    ),
}
FUNCTIONS = ("causal_conv1d_fn", "causal_conv1d_update", "mamba2_selective_state_update", "mamba2_chunk_scan")
DEVICE = "cuda"
TOKENS = 1000


def layer_of(name: str, sizes: dict):
    """The mixer alone, bfloat16, and its config; states live for some tens of tokens up to thousands."""
    module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["*"])
    torch.manual_seed(0)
    kind = {"mamba2": "Mamba2", "nemotron_h": "NemotronH", "granitemoehybrid": "GraniteMoeHybrid"}
    kind |= {"bamba": "Bamba", "falcon_h1": "FalconH1", "zamba2": "Zamba2"}
    config = getattr(transformers, f"{kind[name]}Config")(**sizes)
    with torch.device(DEVICE):
        mixer = getattr(module, mixers.CLASSES[name])(config, layer_idx=0)
        if name == "falcon_h1":
            mixer.register_buffer("mup_vector", module.compute_mup_vector(config))
    mixer = mixer.eval().requires_grad_(False)
    mixer.A_log.uniform_(-3.0, 2.0)
    mixer.dt_bias.normal_(-4.0)
    mixer.D.normal_()
    mixer.conv1d.weight.normal_(std=0.5)
    return mixer.to(torch.bfloat16), config


@contextmanager
def only_torch(mixer):
    """The library's own torch functions, whatever is installed."""
    module = sys.modules[type(mixer).__module__]
    installed = {name: getattr(module, name) for name in FUNCTIONS}
    for name, function in installed.items():
        # since 5.25 the package `kernels` makes a module of it
        made = isinstance(function, torch.nn.Module)
        wrapped = inspect.getclosurevars(type(function).forward).nonlocals["func"] if made else function
        setattr(module, name, wrapped.__wrapped__)
    try:
        yield
    finally:
        for name, function in installed.items():
            setattr(module, name, function)


@torch.no_grad()
def outputs(mixer, config, hidden, mask) -> dict[str, torch.Tensor]:
    """A padded prompt, a step, more text, and what the cache then holds."""
    cache = transformers.DynamicCache(config=config)
    hidden = hidden.to(mixer.in_proj.weight.dtype)
    first, more = hidden[:, :-8], hidden[:, -8:]
    seen = {"prompt": mixer(first, cache=cache, attention_mask=mask)}
    seen["state"] = cache.get_recurrent_state(0).clone()
    seen["step"] = mixer(more[:, :1], cache=cache)
    seen["more text"] = mixer(more[:, 1:], cache=cache)
    seen["state after it"] = cache.get_recurrent_state(0).clone()
    return seen


def error(seen, measure) -> dict[str, float]:
    return {
        key: ((value.double() - measure[key].double()).square().mean() / measure[key].double().square().mean()).sqrt()
        for key, value in seen.items()
    }


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_layer_does_what_the_librarys_does(name, side):
    spec, sizes = LAYERS[name]
    mixer, config = layer_of(name, sizes)
    hidden = torch.randn(2, TOKENS, config.hidden_size, device=DEVICE, dtype=torch.bfloat16)
    mask = torch.ones(2, TOKENS - 8, device=DEVICE, dtype=torch.int64)
    mask[1, : TOKENS // 3] = 0
    mask = mask if side == "left" else mask.flip(1)
    # what is measured against is not rounded to tfloat32, which convolutions are by default
    with only_torch(mixer), torch.backends.cudnn.flags(allow_tf32=False):
        measure = outputs(copy.deepcopy(mixer).float(), config, hidden, mask)
        own = error(outputs(mixer, config, hidden, mask), measure)
    installed = error(outputs(mixer, config, hidden, mask), measure)
    with patch(mixer, checked(load(spec))):
        seen = outputs(mixer, config, hidden, mask)
    assert seen["state"].dtype == seen["state after it"].dtype == torch.float32
    assert seen["state"].shape == measure["state"].shape
    ours = error(seen, measure)
    for key, value in ours.items():
        # ours rounds the output once more than the torch functions, and dt less often
        assert value <= 1.25 * max(own[key], installed[key]) + 1e-4, (key, value, own[key], installed[key])


def test_a_layer_is_refused_by_kernels_of_another():
    from ssmgen.errors import IntegrationError

    mixer, _ = layer_of("mamba2", LAYERS["mamba2"][1])
    with pytest.raises(IntegrationError, match="do not take its arguments"):
        patch(mixer, load("nemotron_h_8b"))
    with pytest.raises(IntegrationError, match="do not take its arguments"):
        patch(mixer.float(), load("mamba2_2p7b"))


@pytest.mark.skipif("SSMGEN_ARCHIVE" in os.environ, reason="kernels that patch finds itself are compiled here")
def test_the_kernels_of_a_layer_are_found():
    mixer, _ = layer_of("nemotron_h", LAYERS["nemotron_h"][1])
    with patch(mixer) as patched, torch.no_grad():
        assert "H=128, G=8, P=64, S=128" in patched.kernels.__doc__
        mixer(torch.randn(1, 100, 4096, device=DEVICE, dtype=torch.bfloat16))
