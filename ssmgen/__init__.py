"""From a state-space model's config.json to fully specialised, committed, verified cuTile GPU kernels.

Importing it imports nothing else: `load` comes with its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssmgen.loading import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from ssmgen.loading import load

        return load
    raise AttributeError(f"module 'ssmgen' has no attribute {name!r}")
