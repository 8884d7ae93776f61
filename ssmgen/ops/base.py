"""What every operator's contract is made of: closed models, dtypes, routes.

No tensors here, only their description.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ssmgen import conditions
from ssmgen.errors import SpecError
from ssmgen.naming import check_name

Dtype = Literal["bfloat16", "float16", "float32"]
Size = Annotated[int, Field(gt=0, le=65536)]
# one tile spans it
Dim = Annotated[int, Field(gt=0, le=256)]


class Closed(BaseModel):
    """A strict, immutable model: an unknown key is an error, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _condition(text: str) -> str:
    conditions.parse(text)
    return text


def named(kind: str) -> AfterValidator:
    """A validator that admits what `naming` takes for the name of a `kind`."""

    def check(value: str) -> str:
        try:
            check_name(kind, value)
        except SpecError as e:
            raise ValueError(f"{value[:40]!r} is no {kind} name; {e.expected}") from None
        return value

    return AfterValidator(check)


RouteName = Annotated[str, named("route")]


class Route(Closed):
    """Which plan serves which run-time shapes: the first route whose `when` holds is taken."""

    when: Annotated[str, AfterValidator(_condition)]
    plan: str
