"""config.json -> the shape of a model's state-space layers, per GPU, or a refusal by name with the deciding field.

One module an architecture family; a new family is one module and its line in `_FAMILIES`. No kernel, schedule or spec
text is known here.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssmgen.configs import (
    bamba,
    dtypes,
    falcon_h1,
    gated_delta,
    granitemoehybrid,
    lara_mini,
    located_json,
    mamba2,
    mamba_ssm,
    nemotron_h,
    olmo_hybrid,
    plamo2,
    refused,
    zamba2,
)
from ssmgen.configs.fields import Fields
from ssmgen.configs.layers import Layers
from ssmgen.configs.mixers import GatedDeltaMixer, Mamba2Mixer, Mixer, Reading
from ssmgen.errors import ConfigError, UsageError, then_run
from ssmgen.ops.base import Dtype

__all__ = ["READERS", "GatedDeltaMixer", "Mamba2Mixer", "ModelShape", "read_config"]

_FAMILIES = (
    mamba2,
    nemotron_h,
    bamba,
    granitemoehybrid,
    falcon_h1,
    zamba2,
    plamo2,
    gated_delta,
    olmo_hybrid,
    lara_mini,
)
Reader = Callable[[Fields], Reading]
# by model_type; native configs, which have none, are recognised by their fields
READERS: dict[str, Reader] = {model_type: family.read for family in _FAMILIES for model_type in family.MODEL_TYPES}
# objects that hold a language model's config inside that of an omni or vision model
_WRAPPERS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class ModelShape:
    """One model's mixer on one of `tensor_parallel` GPUs, and where every number came from.

    `architecture` is the model_type that decided (mamba_ssm for native configs), `source` the config's _name_or_path,
    `sha256` that of the file's bytes, `x` the activations' dtype with its origin.
    """

    architecture: str
    source: str | None
    sha256: str
    tensor_parallel: int
    mixer: Mixer
    layers: Layers
    x: tuple[Dtype, str]


def read_config(path: Path, tensor_parallel: int = 1) -> ModelShape:
    """The shape in a model's config.json; ConfigError says what in it is broken, unknown or out of scope."""
    if type(tensor_parallel) is not int or tensor_parallel < 1:
        raise UsageError(
            f"tensor parallel = {tensor_parallel}: not a number of GPUs",
            found=tensor_parallel,
            expected="a whole number > 0",
            next=f"ssmgen new {shlex.quote(str(path))} --tp N",
        )
    split = ["--tp", str(tensor_parallel)] if tensor_parallel > 1 else []
    with then_run(shlex.join(["ssmgen", "new", str(path), *split])):
        return _read(path, tensor_parallel)


def _read(path: Path, tensor_parallel: int) -> ModelShape:
    document, content = located_json.read(path)
    chain = _unwrap(Fields(document))
    config = chain[-1]
    architecture, read = _reader(chain)
    reading = read(config)
    _require_given(config, architecture, reading)
    # the whole model's shape must be right before it is divided, so that errors name the config's own numbers
    reading.mixer.shape()
    mixer = reading.mixer.split(tensor_parallel) if tensor_parallel > 1 else reading.mixer
    return ModelShape(
        architecture=architecture,
        source=chain[0].text("_name_or_path") or None,
        sha256=hashlib.sha256(content).hexdigest(),
        tensor_parallel=tensor_parallel,
        mixer=mixer,
        layers=reading.layers,
        x=dtypes.activations(chain),
    )


def _require_given(config: Fields, architecture: str, reading: Reading) -> None:
    """Refuse a config of which no field gives a size: its fields are elsewhere, or have other names."""
    sizes = reading.mixer.sizes().values()
    if any(number.given for number in sizes):
        return
    default = " (class default)"
    names = [number.origin.removesuffix(default) for number in sizes if number.origin.endswith(default)]
    raise ConfigError(
        f"{config.label() or architecture}: no field gives a size of the mixer, only class defaults are left",
        where=config.where(),
        found=", ".join(map(str, list(config.data)[:6])),
        expected="at least one of " + ", ".join(names),
        next="add the sizes of the model's mixer",
    )


def _unwrap(outer: Fields) -> list[Fields]:
    """The config and the language-model objects nested in it, innermost last."""
    chain = [outer]
    while True:
        nested = [(name, inner) for name in _WRAPPERS if (inner := chain[-1].object(name)) is not None]
        if not nested:
            return chain
        if len(nested) > 1:
            names = " and ".join(chain[-1].label(name) for name, _ in nested)
            raise ConfigError(
                f"{names}: which of them is the language model is not clear",
                where=chain[-1].where(nested[1][0]),
                found=f"a config in {names}",
                expected="one of them",
                next="remove the one that is not the language model's",
            )
        chain.append(nested[0][1])


def _reader(chain: list[Fields]) -> tuple[str, Reader]:
    """The innermost model_type of `chain` and its reader; a refusal by name where there is none."""
    known = sorted(name for name in READERS if not name.endswith("_text"))
    config = chain[-1]
    for named_in in reversed(chain):
        model_type = named_in.text("model_type")
        if model_type is None:
            continue
        if model_type not in READERS:
            raise refused.refuse(config, model_type, known, named_in)
        return model_type, READERS[model_type]
    if mamba_ssm.recognises(config):
        return mamba_ssm.NAME, mamba_ssm.read
    raise config.error("model_type", "missing", expected="one of " + ", ".join(known))
