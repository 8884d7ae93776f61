"""Where the kernels enter a model of transformers: the function by which its mixers call their scan.

Every Mamba-2 mixer of transformers calls the global `mamba2_chunk_scan` of its own module, itself or through another
function there, with its weights and the keyword arguments of its `forward`. So a mixer is served by a forward pre-hook,
which adds a keyword argument, and by a function in the place of that global, which takes the argument out again and
calls what it holds. Whatever comes without the argument, such as another model of that architecture, goes to the
library's function. The library drops keyword arguments that an implementation does not know, so the convolution and the
decode step never see ours. Whether a mixer of this version does all that is not read in its code but tried: `probe`.

It changes no class, no weight and no `forward`, and knows neither kernels nor architectures.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from ssmgen.errors import IntegrationError

NAME = "mamba2_chunk_scan"
_ARGUMENT = "ssmgen_scan"


@dataclass(frozen=True)
class Scan:
    """An operator in the place of `mamba2_chunk_scan`, the names of its `parameters`, and the dtype of its `dt`."""

    operator: Callable[..., Any]
    parameters: frozenset[str]
    dt: torch.dtype

    def __call__(self, *tensors: torch.Tensor, **given: Any) -> Any:
        """The operator's result for the library's arguments, (x, dt, A, B, C, chunk_size=…, D=…, …).

        What the operator has no name for is left out, as the library does with its own implementations.
        """
        x, dt, *others = tensors
        known = {name: value for name, value in given.items() if name in self.parameters}
        # bfloat16 to float32 is exact
        return self.operator(x, dt.to(self.dt), *others, **known)


class Hook:
    """The forward pre-hook of a served mixer; a copy of the mixer has its own."""

    def __init__(self, scan: Scan, module: str) -> None:
        self.scan = scan
        self.module = module
        _hooks(module).add(self)

    def __call__(self, mixer: Any, arguments: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if mixer.training:
            raise IntegrationError(
                "a patched mixer was called in training mode",
                expected="evaluation mode: the kernels have no backward",
                next="model.eval(), or unpatch(model) to train it",
            )
        return arguments, {**given, _ARGUMENT: self.scan}

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(self.scan, self.module)

    def __reduce__(self) -> Any:
        raise IntegrationError(
            "a patched model cannot be pickled",
            expected="a model without kernels, which are functions of this process",
            next="unpatch(model) first; save_pretrained needs no unpatch",
        )


@dataclass(frozen=True)
class Call:
    """The arguments of one call of `mamba2_chunk_scan`."""

    tensors: tuple[Any, ...]
    given: dict[str, Any]


class _Reached(Exception):  # noqa: N818 - it ends a probe that went well
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


# of a module of transformers: its own function, ours in its place, and the hooks that need ours
_SEAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
_HOOKS: dict[str, WeakSet[Hook]] = {}


def _hooks(module: str) -> WeakSet[Hook]:
    return _HOOKS.setdefault(module, WeakSet())


def hook_of(mixer: Any) -> Hook | None:
    """The hook by which `mixer` is served, or None."""
    return next((hook for hook in mixer._forward_pre_hooks.values() if isinstance(hook, Hook)), None)


def probe(mixer: Any, hidden: torch.Tensor) -> Call | None:
    """How `mixer` calls what serves it, of a prompt `hidden` of (1, tokens, hidden size); None where it does not.

    Nothing behind that call is run. Raises what the mixer raises.
    """
    name = type(mixer).__module__
    kinds = {parameter.kind for parameter in inspect.signature(mixer.forward).parameters.values()}
    if not hasattr(sys.modules[name], NAME) or inspect.Parameter.VAR_KEYWORD not in kinds:
        return None

    def reached(*tensors: Any, **given: Any) -> Any:
        raise _Reached(Call(tensors, given))

    _open(name)
    try:
        with torch.no_grad():
            # not its __call__, which may be compiled
            mixer.forward(hidden, **{_ARGUMENT: reached})
    except _Reached as e:
        return e.call
    finally:
        _close_if_unused(name)
    return None


def serve(mixer: Any, scan: Scan) -> None:
    """Let `scan` compute the prefill of `mixer`."""
    name = type(mixer).__module__
    _open(name)
    mixer.register_forward_pre_hook(Hook(scan, name), with_kwargs=True)


def release(mixer: Any) -> None:
    """Undo `serve`; the module's own function returns with the last of its mixers."""
    for key, hook in list(mixer._forward_pre_hooks.items()):
        if isinstance(hook, Hook):
            # by hand: the handle of a copied mixer's hook would still point to the original
            del mixer._forward_pre_hooks[key]
            mixer._forward_pre_hooks_with_kwargs.pop(key, None)
            _hooks(hook.module).discard(hook)
            _close_if_unused(hook.module)


def _open(name: str) -> None:
    if name not in _SEAMS:
        module = sys.modules[name]
        own = getattr(module, NAME)
        _SEAMS[name] = own, _dispatch(own)
        setattr(module, NAME, _SEAMS[name][1])


def _close_if_unused(name: str) -> None:
    if _hooks(name):
        return
    own, ours = _SEAMS.pop(name, (None, None))
    # somebody may have put a function of theirs around ours since: it passes everything on, and stays
    if ours is not None and getattr(sys.modules[name], NAME) is ours:
        setattr(sys.modules[name], NAME, own)


def _dispatch(own: Callable[..., Any]) -> Callable[..., Any]:
    def scan(*arguments: Any, **given: Any) -> Any:
        served = given.pop(_ARGUMENT, None)
        return (own if served is None else served)(*arguments, **given)

    return scan
