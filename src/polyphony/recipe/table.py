"""What every table of a recipe is, and the kinds of values in it."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


class Part(BaseModel):
    """A table of a recipe: fixed once read, and without keys nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def as_step_size(value: object) -> object:
    """A number, or a fraction such as "1/255", above zero; or "match"."""
    if value == "match":
        return value
    try:
        number = float(Fraction(value)) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError, ZeroDivisionError):
        number = -1.0
    if isinstance(value, bool) or number <= 0:
        raise ValueError('must be a number or a fraction above 0, such as "1/255", or "match"')
    return number


StepSize = Annotated[float | Literal["match"], BeforeValidator(as_step_size)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_.-]*$")]
