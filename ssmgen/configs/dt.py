"""What a config says of the time step's limit and the state cache, as remarks for the spec.

The limit stays a run-time argument of the operator: engines pass different ones for the same model.
"""

from __future__ import annotations

import json
import math

from ssmgen.configs.fields import Fields

_EXPECTED = "two numbers, low <= high, such as [0.0, Infinity]"
# transformers writes infinity as 1e308 or as an object, others bare
_INFINITE = 1e300


def limit_remarks(config: Fields, name: str = "time_step_limit") -> tuple[str, ...]:
    """One remark where the limit is finite, none where it clamps nothing; a malformed limit is refused."""
    limit = _limit(config, name)
    if limit is None or (limit[0] <= 0 and math.isinf(limit[1])):
        return ()
    return (f"dt_limit: {name} in the config is {_show(limit)}",)


def minimum_remarks(config: Fields, library: str = "transformers") -> tuple[str, ...]:
    """For architectures whose class in `library` clamps to (time_step_min, inf), whatever the config's limit is."""
    _limit(config, "time_step_limit")
    low = _number(config.data["time_step_min"] if config.given("time_step_min") else 0.001)
    if low is None:
        raise config.error("time_step_min", "not a number", expected="a number such as 0.001")
    return (f"dt_limit: {library} takes (time_step_min, inf) = ({low:g}, inf) here, vLLM (0, inf)",)


def _limit(config: Fields, name: str) -> tuple[float, float] | None:
    value = config.data.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise config.error(name, "not a limit", expected=_EXPECTED)
    low, high = (_bound(item) for item in value)
    if low is None or high is None or low > high:
        raise config.error(name, "not a limit", expected=_EXPECTED)
    return low, high


def _bound(item: object) -> float | None:
    if isinstance(item, dict) and set(item) == {"__float__"} and isinstance(item["__float__"], str):
        try:
            item = float(item["__float__"])
        except ValueError:
            return None
    return _number(item)


def _number(item: object) -> float | None:
    if not isinstance(item, (int, float)) or isinstance(item, bool):
        return None
    # an int may be too large for isnan
    if isinstance(item, float) and math.isnan(item):
        return None
    if item <= -_INFINITE:
        return -math.inf
    return math.inf if item >= _INFINITE else float(item)


def _show(limit: tuple[float, float]) -> str:
    return "(" + ", ".join("inf" if math.isinf(bound) else json.dumps(bound) for bound in limit) + ")"
