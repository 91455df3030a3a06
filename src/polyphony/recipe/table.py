"""The error of a recipe, and types that several of its tables use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo

from polyphony._util.settings import HUGE, fraction, is_stored
from polyphony._util.text import UserError

StepRule = Literal["match", "search"]  # ways to find a step size before the training


class RecipeError(UserError, ValueError):
    """A recipe is invalid or its code fails; the message is one sentence for its author."""


def beside(path: str, info: ValidationInfo) -> str:
    """The recipe's folder joined with a path; an absolute path stays as it is."""
    return str(Path((info.context or {}).get("folder", ""), path))


def as_step_size(value: object, info: ValidationInfo) -> object:
    """Returns a number above 0, up to 1, from a number or a fraction such as "1/255", or "match" or "search".

    Raises a ValueError for anything else.
    """
    if value in get_args(StepRule):
        return value
    try:
        number = -1.0 if isinstance(value, bool) else float(fraction(value))
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 < number <= (HUGE if is_stored(info) else 1):  # pixels are in [0, 1]
        raise ValueError(
            'must be a number or a fraction above 0, such as "1/255", at most 1, or "match" or "search"'
        )
    return number


StepSetting = Annotated[float | StepRule, BeforeValidator(as_step_size)]
UnlabelledShare = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_.-]*$")]
