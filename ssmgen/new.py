"""config.json -> the text of a spec that a person can read: aligned, each number with the field it came from.

It writes no file and derives no schedule; whether a spec of that name exists is the caller's business.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from ssmgen.configs import GatedDeltaMixer, Mamba2Mixer, ModelShape, read_config
from ssmgen.errors import UsageError
from ssmgen.naming import check_name, model_name
from ssmgen.ops.base import Route
from ssmgen.spec import SCHEMA
from ssmgen.targets import target

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_PLAIN = ("null", "true", "false")
_WIDTH = 120


def new_spec(config: Path, *, tensor_parallel: int, name: str | None, targets: list[str]) -> tuple[str, str]:
    """The model's name and the text of its spec, from the config.json at `config`.

    `tensor_parallel` GPUs share the model, and the spec is one GPU's; `name` is taken as it is, else it follows from
    the file. Raises ConfigError for a config that is broken or out of scope, SpecError for a name or target that is
    not valid, UsageError for a wrong count of GPUs or no target.
    """
    if not targets:
        raise UsageError("no target given", expected="at least one, such as sm_90")
    for i, item in enumerate(targets):
        target(item)
        if item in targets[:i]:
            raise UsageError(f"target {item} given twice")
    shape = read_config(config, tensor_parallel)
    if name is None:
        name = model_name(_given_name(config, shape.source)) + (f"_tp{tensor_parallel}" if tensor_parallel > 1 else "")
    else:
        check_name("model", name)
    return name, _text(name, _source(config, shape.source), shape, targets)


def _text(name: str, source: str, shape: ModelShape, targets: list[str]) -> str:
    mixer = shape.mixer
    body = _mamba2(mixer, shape.x) if isinstance(mixer, Mamba2Mixer) else _gated_delta(mixer, shape.x)
    return "\n".join(
        (
            f"# {shape.architecture}: {mixer.title} in {shape.layers}",
            f"schema: {SCHEMA}",
            "model:",
            f"  name: {_scalar(name)}",
            f"  source: {_scalar(source)}",
            f"  config_sha256: {shape.sha256}",
            f"  tensor_parallel: {shape.tensor_parallel}",
            "operators:",
            f"  {mixer.operator}:",
            *_shape(mixer),
            *body,
            f"targets: [{', '.join(targets)}]",
            "",
        )
    )


def _shape(mixer: Mamba2Mixer | GatedDeltaMixer) -> list[str]:
    """One size a line, with its origin in an aligned comment."""
    sizes = mixer.sizes()
    entries = [(f"      {name}: {number.value}", number.origin) for name, number in sizes.items()]
    width = max(len(entry) for entry, _ in entries)
    lines = ["    shape:"]
    for entry, origin in entries:
        line = f"{entry:<{width}}  # {origin}"
        # a long origin goes above its number, so that no line is wider than the others of the repository
        lines += [line] if len(line) <= _WIDTH else [f"      # {origin}", entry]
    return lines


def _mamba2(mixer: Mamba2Mixer, x: tuple[str, str]) -> list[str]:
    dtype, origin = x
    # chunk states are as wide as bfloat16 activations; float16 could overflow in a state, so it takes float32
    chunk_state = "bfloat16" if dtype == "bfloat16" else "float32"
    return [
        f"    # x: {origin}",
        f"    dtypes: {{x: {dtype}, dt: float32, chunk_state: {chunk_state}, state: float32}}",
        *(f"    # {remark}" for remark in mixer.remarks),
        f"    options: {{D: {mixer.skip}, z: {mixer.gate}, dt_bias: true, dt_softplus: true, dt_limit: runtime,",
        "              initial_states: true, packed: true}",
        "    routes:",
        *_routes(mixer),
    ]


def _gated_delta(mixer: GatedDeltaMixer, x: tuple[str, str]) -> list[str]:
    dtype, origin = x
    return [
        f"    # x: {origin}",
        f"    dtypes: {{x: {dtype}, state: {mixer.state_dtype}}}",
        *(f"    # {remark}" for remark in mixer.remarks),
        f"    options: {{qk_l2norm: true, beta_scale: {mixer.beta_scale}}}",
    ]


def _routes(mixer: Mamba2Mixer) -> list[str]:
    # plans import every stage: only a Mamba-2 spec pays for it
    from ssmgen.plans import derive_routes

    routes: dict[str, Route] = derive_routes(mixer.shape())
    width = max(len(name) for name in routes) + 1
    return [
        f"      {name + ':':<{width}} {{when: {json.dumps(route.when)}, plan: {route.plan}}}"
        for name, route in routes.items()
    ]


def _given_name(config: Path, source: str | None) -> str:
    """What the model is called: the file's stem, or for a plain config.json its _name_or_path, or its folder."""
    if config.stem != "config":
        return config.stem
    return _short(source) if source else _folder(config)


def _source(config: Path, source: str | None) -> str:
    """The config's _name_or_path, else the file's stem, or its folder for a plain config.json."""
    if source and source.isprintable():
        return _short(source)
    return config.stem if config.stem != "config" else _folder(config)


def _short(source: str) -> str:
    """A repository id as it is; of a path on somebody's disk only the last part, which says nothing of the disk."""
    if source.startswith(("/", ".", "~")) or PureWindowsPath(source).drive:
        return PurePosixPath(source.replace("\\", "/")).name or source
    return source


def _folder(config: Path) -> str:
    """The name of the config's folder; the repository id where the folder is a Hugging Face cache snapshot."""
    folder = config.resolve().parent
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return cached.removeprefix("models--").replace("--", "/")
    return folder.name


def _scalar(text: str) -> str:
    """A string as YAML 1.2: plain where it can be nothing but a string, else double-quoted."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return text
    return json.dumps(text)
