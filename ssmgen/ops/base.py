"""What every operator's contract is made of: closed models, dtypes, routes.

No tensors here, only their description.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ssmgen import conditions
from ssmgen.errors import SpecError, ViolationError
from ssmgen.naming import check_name

Dtype = Literal["bfloat16", "float16", "float32"]
Size = Annotated[int, Field(gt=0, le=65536)]
# one tile spans it
Dim = Annotated[int, Field(gt=0, le=256)]


class Closed(BaseModel):
    """A strict, immutable model: an unknown key is an error, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _condition(text: str) -> str:
    try:
        conditions.parse(text)
    except ValueError as e:
        raise ViolationError(
            str(e),
            found=repr(text[:80]),
            expected=f"comparisons of {', '.join(conditions.RUN_TIME + conditions.MODEL)}, such as B*T <= 4096",
        ) from None
    return text


def named(kind: str) -> AfterValidator:
    """A validator that admits what `naming` takes for the name of a `kind`."""

    def check(value: str) -> str:
        try:
            check_name(kind, value)
        except SpecError as e:
            raise ViolationError(
                f"{value[:40]!r} is no {kind} name", found=repr(value[:40]), expected=e.expected or ""
            ) from None
        return value

    return AfterValidator(check)


def whole_groups(group: str, groups: int, of: str, count: int) -> None:
    """Raise ViolationError unless `groups`, of the key `group`, divides `count`, of the key `of`."""
    if count % groups == 0:
        return
    below = max(n for n in range(1, min(groups, count) + 1) if count % n == 0)
    above = next((n for n in range(groups, count + 1) if count % n == 0), below)
    raise ViolationError(
        f"{group} = {groups} must divide {of} = {count}",
        found=f"{group}: {groups}, {of}: {count}",
        expected=f"{group} that divide {count}, such as " + " or ".join(dict.fromkeys((str(below), str(above)))),
        next=f"change {group} or {of}",
        key=(group,),
    )


RouteName = Annotated[str, named("route")]


class Route(Closed):
    """Which plan serves which run-time shapes: the first route whose `when` holds is taken."""

    when: Annotated[str, AfterValidator(_condition)]
    plan: str
