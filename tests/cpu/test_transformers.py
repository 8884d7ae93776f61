"""`ssmgen.integrations.transformers` on the CPU: small random models of every architecture against the library alone.

The kernels run in the interpreter, and each of their calls is also held to the table of tolerances. What a model may
then differ by is measured, not guessed: the same model with the exact scan and the rounding errors that the table
allows, drawn at random.
"""

from __future__ import annotations

import copy
import math
import pickle
import sys
from functools import cache
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ssmgen  # noqa: E402
from ssmgen.errors import IntegrationError  # noqa: E402
from ssmgen.integrations import mixers, seam  # noqa: E402
from ssmgen.integrations.transformers import patch, unpatch  # noqa: E402
from ssmgen.new import new_spec  # noqa: E402
from tests.scans import checked, exact, operator, rounded  # noqa: E402

SIZES = dict(vocab_size=64, hidden_size=48, bos_token_id=1, eos_token_id=None, pad_token_id=0)
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
# three heads a group, and no two sizes alike
MAMBA = dict(mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=24, mamba_chunk_size=8)
CONFIGS = {
    "mamba2": dict(num_hidden_layers=2, num_heads=6, head_dim=16, n_groups=2, state_size=24, chunk_size=8),
    "nemotron_h": ATTENTION
    | dict(layers_block_type=["mamba", "attention", "mamba"], mamba_num_heads=6, mamba_head_dim=16, n_groups=2)
    # a limit that half of the time steps meet, before 5.25 by the one name and since by the other
    | dict(ssm_state_size=24, chunk_size=8, time_step_min=0.05, time_step_limit=(0.05, math.inf)),
    "bamba": ATTENTION | MAMBA | dict(num_hidden_layers=2, attn_layer_indices=[1]),
    "granitemoehybrid": ATTENTION
    | MAMBA
    | dict(num_hidden_layers=2, layer_types=["mamba", "attention"], num_local_experts=4, num_experts_per_tok=2)
    | dict(shared_intermediate_size=64),
    "falcon_h1": ATTENTION
    | MAMBA
    # every part of the projection has a multiplier of its own
    | dict(num_hidden_layers=1, head_dim=12, mamba_d_ssm=96, ssm_multipliers=[0.5, 1.5, 0.8, 1.2, 0.9])
    | dict(ssm_in_multiplier=1.3),
    "falcon_h1_norm": ATTENTION
    | MAMBA
    | dict(num_hidden_layers=1, head_dim=12, mamba_d_ssm=96, mamba_rms_norm=True, mamba_norm_before_gate=False),
    "zamba2": ATTENTION
    | dict(num_hidden_layers=2, layers_block_type=["mamba", "hybrid"], num_mem_blocks=1, attention_head_dim=24)
    | dict(n_mamba_heads=6, mamba_headdim=16, mamba_ngroups=2, mamba_d_state=24, chunk_size=8, time_step_min=0.05),
}
CLASSES = {
    "mamba2": "Mamba2",
    "nemotron_h": "NemotronH",
    "bamba": "Bamba",
    "granitemoehybrid": "GraniteMoeHybrid",
    "falcon_h1": "FalconH1",
    "falcon_h1_norm": "FalconH1",
    "zamba2": "Zamba2",
}
# longer than a chunk of the kernels
TOKENS = 70
# whether the library can take tokens back: from 5.25 on
KEEPS_STATES = hasattr(transformers.Cache, "get_recurrent_states_to_keep")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    # small tensors, and other test processes beside this one
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def model_of(name: str):
    """The model, float32, with weights under which states live for a few to a hundred tokens."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{CLASSES[name]}Config")(**SIZES, **CONFIGS[name], tie_word_embeddings=False)
    config.dtype = torch.float32
    model = getattr(transformers, f"{CLASSES[name]}ForCausalLM")(config).eval().requires_grad_(False)
    for mixer in mixers.find(model):
        mixer.module.A_log.uniform_(-2.0, 1.0)
        mixer.module.dt_bias.normal_(-3.0)
        mixer.module.D.normal_()
        # so that the layer is a large part of the logits
        mixer.module.in_proj.weight.normal_(std=0.3)
        mixer.module.out_proj.weight.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory):
    """The kernels of a model: its config saved, `ssmgen new`, `ssmgen.load(…, interpret=True)`."""

    @cache
    def load(name: str, dtype: str = "float32") -> ModuleType:
        folder = tmp_path_factory.mktemp(name)
        config = copy.deepcopy(model_of(name).config)
        config.dtype = dtype
        config.save_pretrained(folder)
        spec_name, text = new_spec(folder / "config.json", tensor_parallel=1, name="small", targets=["sm_90"])
        (folder / f"{spec_name}.yaml").write_text(text)
        return ssmgen.load(folder / f"{spec_name}.yaml", interpret=True)

    return load


def prompt(batch: int = 2, tokens: int = TOKENS):
    return torch.randint(1, 64, (batch, tokens), generator=torch.Generator().manual_seed(1))


def states(model, result):
    return torch.stack([result.cache.get_recurrent_state(m.module.layer_idx) for m in mixers.find(model)])


@torch.no_grad()
def outputs(model) -> dict[str, torch.Tensor]:
    """What a user can see of a model: logits of a prompt, of steps and of more text after it, of padded batches."""
    ids, seen = prompt(), {}
    result = model(ids, use_cache=True)
    seen["prompt"], seen["state"] = result.logits, states(model, result).clone()
    steps = []
    for token in prompt(2, 3).split(1, dim=1):
        result = model(token, cache=result.cache, use_cache=True)
        steps.append(result.logits)
    seen["steps"] = torch.cat(steps, dim=1)
    result = model(prompt(2, 5), cache=result.cache, use_cache=True)
    seen["more text"], seen["state after it"] = result.logits, states(model, result).clone()
    seen["one token"] = model(ids[:, :1]).logits
    mask = torch.ones_like(ids)
    mask[0, :9] = mask[1, -9:] = 0
    result = model(ids, attention_mask=mask, use_cache=True)
    # what stands on padding is nobody's business
    logits = torch.where(mask[:, :, None] == 1, result.logits, 0.0)
    kept = states(model, result)
    for row, side in enumerate(("left", "right")):
        seen[f"padded {side}"], seen[f"state, padded {side}"] = logits[row][None], kept[:, row].clone()
    return seen | (taken_back(model) if KEEPS_STATES else {})


def taken_back(model) -> dict[str, torch.Tensor]:
    """Logits and states where text is tried and some of it taken back, as by assisted generation."""
    cache = transformers.DynamicCache(config=model.config)
    model(prompt(), cache=cache, use_cache=True)
    cache.activate_past_recording(recurrent_states_to_keep=4)
    logits = []
    # as many as are kept, which leaves no token to the scan, then more, and one
    for tokens, back in ((4, 2), (7, 1), (1, 0)):
        result = model(prompt(2, tokens), cache=cache, use_cache=True)
        logits.append(result.logits)
        cache.crop(-back)
    return {"taken back": torch.cat(logits, dim=1), "state, taken back": states(model, result).clone()}


@cache
def library(name: str):
    return outputs(model_of(name))


@cache
def limits(name: str):
    """How far each output may be from the library's; measured without ssmgen's way into the model."""
    model = model_of(name)
    torch.manual_seed(2)
    scan = operator(rounded).mamba_chunk_scan_combined
    with pytest.MonkeyPatch.context() as library_with:
        library_with.setattr(sys.modules[type(mixers.find(model)[0].module).__module__], seam.NAME, scan)
        seen = outputs(model)
    measured = {key: 3 * distance(value, library(name)[key]) + 1e-6 for key, value in seen.items()}
    # a limit that lets anything pass is none
    assert all(limit <= 0.05 * library(name)[key].square().mean().sqrt() for key, limit in measured.items())
    return measured


def distance(a, b):
    """The largest root mean square over what belongs to one token, or to one head's state."""
    axes = -1 if a.dim() == 3 else (-2, -1)
    return (a.double() - b.double()).square().mean(axes).sqrt().max().item()


def wrong(name: str, kernels) -> dict[str, float]:
    """The outputs of the model with these kernels that are beyond their limit, in units of it."""
    with patch(model_of(name), kernels) as patched:
        seen = outputs(patched.model)
    ratios = {key: distance(value, library(name)[key]) / limits(name)[key] for key, value in seen.items()}
    return {key: ratio for key, ratio in ratios.items() if not ratio <= 1}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_patched_model_does_what_the_library_does(name, kernels):
    assert not wrong(name, checked(kernels(name)))


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_is_no_worse_than_the_librarys(name, kernels):
    # the library's own way adds and rounds dt in bfloat16, which ours and mamba_ssm's do not
    model = copy.deepcopy(model_of(name)).to(torch.bfloat16)
    ids = prompt()
    with torch.no_grad():
        wide = copy.deepcopy(model).float()(ids).logits
        own = model(ids, use_cache=True)
        with patch(model, checked(kernels(name, "bfloat16"))):
            ours = model(ids, use_cache=True)
    for cached in (own, ours):
        assert states(model, cached).dtype == torch.float32
    assert states(model, ours).shape == states(model, own).shape
    assert ours.logits.dtype == own.logits.dtype
    error, own_error = ((logits - wide).square().mean().sqrt() for logits in (ours.logits, own.logits))
    assert error <= 1.1 * own_error


@pytest.mark.skipif(not KEEPS_STATES, reason="this version of transformers takes nothing back")
@pytest.mark.parametrize("name", CONFIGS)
def test_assisted_generation_finds_the_same_tokens(name, kernels):
    # text that comes twice, so that the assistant has something to propose
    model, ids = model_of(name), prompt(1, 20).repeat(1, 2)
    how = dict(max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)
    own = model.generate(ids, **how)
    with patch(model, kernels(name)):
        assert torch.equal(model.generate(ids, **how), own)


@pytest.mark.parametrize("name", CONFIGS)
def test_generate_finds_the_same_tokens(name, kernels):
    model, ids = model_of(name), prompt(2, 20)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    how = dict(attention_mask=mask, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True)
    own = model.generate(ids, **how)
    with patch(model, kernels(name)):
        ours = model.generate(ids, **how)
    logits = torch.stack(own.logits)
    error = (torch.stack(ours.logits) - logits).abs().max()
    first, second = logits.topk(2).values.unbind(-1)
    # else equal tokens would be luck
    assert (first - second).min() > 4 * error
    assert torch.equal(ours.sequences, own.sequences)


def changed(**changes):
    """The exact scan of other arguments, each changed by a function."""
    return lambda given: exact(given | {name: change(given.get(name)) for name, change in changes.items()})


def spoiled(change):
    """The exact scan, with other final states."""

    def scan(given):
        out, state = exact(given)
        return out, change(state)

    return scan


MUTANTS = {
    "no D": (changed(D=torch.zeros_like), "prompt"),
    "another head's decay": (changed(A=lambda a: a.flip(0)), "prompt"),
    "groups in another order": (changed(B=lambda b: b.flip(2), C=lambda c: c.flip(2)), "prompt"),
    "no bias of dt": (changed(dt_bias=torch.zeros_like), "prompt"),
    "no limit of dt": (changed(dt_limit=lambda _: (0.0, math.inf)), "prompt"),
    "no initial state": (changed(initial_states=lambda _: None), "more text"),
    "heads of the state in another order": (spoiled(lambda s: s.flip(1)), "steps"),
    "the state transposed": (spoiled(lambda s: s.transpose(2, 3).reshape(s.shape)), "steps"),
    "no state": (spoiled(torch.zeros_like), "steps"),
    "the state one token early": (spoiled(lambda s: s * 0.95), "steps"),
}


def test_the_exact_scan_passes():
    assert not wrong("nemotron_h", operator(exact))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_scan_is_seen(mutant):
    scan, where = MUTANTS[mutant]
    assert where in wrong("nemotron_h", operator(scan))


def failing():
    """Kernels that fail where there is something to compute."""

    def scan(arguments):
        assert arguments["x"].numel() == 0, "called"
        return exact(arguments)

    return operator(scan)


def untouched(model) -> bool:
    """Nothing of ours is left: neither in the model nor in the library."""
    modules = {sys.modules[type(m.module).__module__] for m in mixers.find(model)}
    own = all(getattr(module, seam.NAME).__module__ != seam.__name__ for module in modules)
    return own and not any(module._forward_pre_hooks for module in model.modules())


def refusal(model, kernels, **more) -> str:
    with pytest.raises(IntegrationError) as raised:
        patch(model, kernels, **more)
    assert raised.value.next
    return str(raised.value)


def test_patch_and_unpatch():
    model = model_of("mamba2")
    ids = prompt(1, 3)
    before = model(ids).logits
    patched = patch(model, operator(exact))
    assert patched.layers == ("backbone.layers.0.mixer", "backbone.layers.1.mixer")
    assert "patched already" in refusal(model, operator(exact))
    assert not untouched(model)
    unpatch(model)
    unpatch(model)
    assert untouched(model)
    assert torch.equal(model(ids).logits, before)


def test_an_error_inside_a_with_unpatches():
    model = model_of("mamba2")
    with pytest.raises(AssertionError, match="called"), patch(model, failing()):
        model(prompt(1, 3))
    assert untouched(model)


def test_only_the_patched_model_is_served():
    model = model_of("bamba")
    other = copy.deepcopy(model)
    with patch(model, failing()):
        other(prompt(1, 3))
        with pytest.raises(AssertionError, match="called"):
            model(prompt(1, 3))
        # both at once, each with its own
        with patch(other, operator(exact)):
            other(prompt(1, 3))
        other(prompt(1, 3))
        with pytest.raises(AssertionError, match="called"):
            model(prompt(1, 3))


def test_a_copy_stays_patched_on_its_own():
    model = copy.deepcopy(model_of("bamba"))
    calls = []
    patch(model, operator(lambda given: (calls.append(given["D"].data_ptr()), exact(given))[1]))
    twin = copy.deepcopy(model)
    unpatch(model)
    del calls[:]
    twin(prompt(1, 3))
    # with its own weights
    assert calls == [m.module.D.data_ptr() for m in mixers.find(twin)]
    unpatch(twin)
    assert untouched(twin)


def test_a_patched_model_is_saved_as_ever(tmp_path):
    model = model_of("bamba")
    with patch(model, operator(exact)):
        model.save_pretrained(tmp_path)
        with pytest.raises(IntegrationError, match="cannot be pickled"):
            pickle.dumps(model)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(saved(prompt(1, 3)).logits, model(prompt(1, 3)).logits)


def test_decode_compiles_whole():
    # generate() compiles the decode step with some caches
    model = model_of("mamba2")
    with patch(model, operator(exact)), torch.no_grad():
        cached = model(prompt(1, 3), use_cache=True).cache
        twin = copy.deepcopy(cached)
        step = torch.compile(model, backend="eager", fullgraph=True)
        got = step(prompt(1, 1), cache=cached, use_cache=True).logits
        assert torch.allclose(got, model(prompt(1, 1), cache=twin, use_cache=True).logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def packing(monkeypatch):
    """A model under a convolution that takes seq_idx: the library's own refuses it without causal_conv1d."""
    model = model_of("bamba")
    module = sys.modules[type(mixers.find(model)[0].module).__module__]
    own = module.causal_conv1d_fn

    def convolve(*arguments, seq_idx=None, **more):
        return own(*arguments, **more)

    monkeypatch.setattr(module, "causal_conv1d_fn", convolve)
    return model


def test_packed_sequences_go_through(packing):
    seen = []
    numbers = torch.tensor([[0, 0, 1, 1]], dtype=torch.int32)
    with patch(packing, operator(lambda given: (seen.append(given.pop("seq_idx", None)), exact(given))[1])):
        packing(prompt(1, 4), seq_idx=numbers)
    assert seen[-1] is numbers


def test_kernels_without_packed_sequences_refuse_them(packing, tmp_path):
    (tmp_path / "mine.yaml").write_text(SPEC.format(name="mine", state=24))
    with (
        patch(packing, tmp_path / "mine.yaml", interpret=True),
        pytest.raises(ValueError, match=r"seq_idx: .* generated without it"),
    ):
        packing(prompt(1, 4), seq_idx=torch.tensor([[0, 0, 1, 1]], dtype=torch.int32))


def test_training_is_refused(kernels):
    model = copy.deepcopy(model_of("bamba")).train()
    assert "training mode" in refusal(model, kernels("bamba"))
    with patch(model.eval(), kernels("bamba")):
        with pytest.raises(IntegrationError, match="training mode"):
            model.train()(prompt(1, 3))
        with pytest.raises(ValueError, match="no backward"):
            model.eval().requires_grad_(True)(prompt(1, 3))


def test_other_architectures_are_refused():
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=8)
    assert "modeling_mamba.MambaMixer" in refusal(transformers.MambaForCausalLM(config).eval(), None)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2))
    assert "no state-space layer" in refusal(plain.eval(), None)


def test_other_shapes_and_dtypes_are_refused(kernels):
    model = copy.deepcopy(model_of("bamba"))
    mixer = mixers.find(model)[0].module
    mixer.n_groups, mixer.ssm_state_size = 1, 48
    assert "groups 1, head_dim 16, state 48" in refusal(model, kernels("bamba"))
    model = copy.deepcopy(model_of("bamba")).to(torch.bfloat16)
    assert "x: found torch.bfloat16, expected torch.float32" in refusal(model, kernels("bamba"))
    assert untouched(model)
    assert "no kernels have its dtype" in refusal(model.double(), kernels("bamba"))


def test_the_second_of_two_layers_refuses_for_both(kernels):
    model = copy.deepcopy(model_of("mamba2"))
    mixer = mixers.find(model)[1].module
    mixer.n_groups, mixer.ssm_state_size = 1, 48
    assert "backbone.layers.1.mixer" in refusal(model, kernels("mamba2"))
    assert untouched(model)


def test_another_version_of_the_library_is_refused(monkeypatch, kernels):
    model = model_of("bamba")
    monkeypatch.setattr(type(mixers.find(model)[0].module), "forward", lambda self, hidden_states: hidden_states)
    said = refusal(model, kernels("bamba"))
    assert f"transformers {transformers.__version__}" in said
    assert "mixers that call mamba2_chunk_scan" in said


def test_a_library_that_goes_another_way_is_refused(monkeypatch, kernels):
    """Such as by kernels from the hub in the place of a function that would call the scan."""
    model = model_of("bamba")
    module = sys.modules[type(mixers.find(model)[0].module).__module__]
    if KEEPS_STATES:
        monkeypatch.setattr(module, "mamba2_scan_forward", lambda mixer, hidden, *_, **__: hidden)
    else:
        monkeypatch.setattr(type(mixers.find(model)[0].module), "forward", lambda self, hidden, **_: hidden)
    assert "mixers that call mamba2_chunk_scan" in refusal(model, kernels("bamba"))
    assert untouched(model)


def test_a_layer_that_fails_by_itself_is_refused(kernels):
    model = copy.deepcopy(model_of("mamba2"))
    mixers.find(model)[1].module.num_heads = 12
    said = refusal(model, kernels("mamba2"))
    assert "backbone.layers.1.mixer: it fails on a prompt" in said
    assert "RuntimeError" in said
    assert untouched(model)


def test_weights_that_are_not_plain_are_refused(kernels):
    from torch import distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    model = copy.deepcopy(model_of("bamba"))
    model.config.quantization_config = {"quant_method": "some"}
    assert "quantised" in refusal(model, kernels("bamba"))
    model = copy.deepcopy(model_of("bamba"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mixer = mixers.find(model)[0].module
        whole = DTensor.from_local(mixer.out_proj.weight.data, init_device_mesh("cpu", (1,)), [Replicate()])
        mixer.out_proj.weight = torch.nn.Parameter(whole)
        assert "DTensor" in refusal(model, kernels("bamba"))
    finally:
        dist.destroy_process_group()
    assert "on meta" in refusal(copy.deepcopy(model_of("bamba")).to("meta"), kernels("bamba"))


def test_kernels_of_the_gpu_are_refused_on_the_cpu(kernels):
    assert "one of them" in refusal(model_of("bamba"), kernels("bamba"), interpret=True)
    assert "have no mamba_chunk_scan_combined" in refusal(model_of("bamba"), SimpleNamespace())


def test_the_specs_that_fit_are_found(kernels, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.ssmgen]\n")
    monkeypatch.chdir(tmp_path)
    model = model_of("bamba")
    assert "no spec fits" in refusal(model, None, interpret=True)
    (tmp_path / "specs").mkdir()
    spec = SPEC.format(name="mine", state=24)
    (tmp_path / "specs/mine.yaml").write_text(spec)
    (tmp_path / "specs/another.yaml").write_text(SPEC.format(name="another", state=32))
    with patch(model, interpret=True) as patched:
        assert patched.kernels.__doc__.startswith("mamba_chunk_scan_combined for mine ")
        model(prompt(1, 3))
    with patch(model, tmp_path / "specs/mine.yaml", interpret=True):
        pass
    assert "groups 2, head_dim 16, state 24" in refusal(model, tmp_path / "specs/another.yaml", interpret=True)


SPEC = """\
schema: 1
model: {{name: {name}, source: table}}
operators:
  mamba_chunk_scan_combined:
    shape: {{heads: 6, groups: 2, head_dim: 16, state: {state}}}
    dtypes: {{x: float32, dt: float32, chunk_state: float32, state: float32}}
    options: {{D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}}
    routes:
      all: {{when: "B >= 1", plan: three_stage}}
targets: [sm_90]
"""


def test_ssmgens_own_specs_are_found():
    config = transformers.Mamba2Config(hidden_size=8, num_hidden_layers=1, num_heads=24, head_dim=64, expand=192)
    config.update(dict(n_groups=1, state_size=128, vocab_size=8))
    model = transformers.Mamba2ForCausalLM(config).eval().to(torch.bfloat16)
    with patch(model, interpret=True) as patched:
        assert patched.kernels.__doc__.startswith("mamba_chunk_scan_combined for mamba2_130m ")
