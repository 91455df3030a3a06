"""What every table of a recipe is, and the kinds of values in it."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from polyphony._util.text import UserError


class RecipeError(UserError, ValueError):
    """A recipe that cannot be followed; the message is one sentence for the person who wrote it."""


class Table(BaseModel):
    """A table of a recipe: fixed once read, and without keys nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def label(self) -> str:
        """What a person calls it: its kind, where it is one of several."""
        return str(getattr(self, "kind", ""))

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The keys that are not at their defaults, or only some of them: what a stored result depends on.

        A key that a later version adds with a default is not in it, so that results made before are found.
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if only is None or name in only}
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in values}
        return {name: as_spec(value) for name, value in values.items() if value != defaults[name]}

    def spec_but(self, others: Collection[str]) -> dict[str, Any]:
        """The same without some keys, so that one which a later version adds is in it where it is set."""
        return self.spec(type(self).model_fields.keys() - others)


def as_spec(value: Any) -> Any:
    """A value of a table as JSON knows it."""
    if isinstance(value, tuple | list):
        return [as_spec(each) for each in value]
    return value.spec() if isinstance(value, Table) else value


def as_table(value: object) -> object:
    """The name of a kind stands for the table that says no more than the name."""
    return {"kind": value} if isinstance(value, str) else value


def as_tuple(value: object) -> object:
    """A list as a tuple, which pydantic makes of JSON itself, but not of what `as_table` has made."""
    return tuple(value) if isinstance(value, list) else value


def as_step_size(value: object) -> object:
    """A number, or a fraction such as "1/255", above zero; or "match"."""
    if value == "match":
        return value
    above, _, below = value.partition("/") if isinstance(value, str) else (value, "", "")
    try:
        number = float(above) / float(below or 1)  # type: ignore[arg-type]
    except (TypeError, ValueError, ArithmeticError):
        number = -1.0
    if isinstance(value, bool) or not 0 < number < inf:
        raise ValueError('must be a number or a fraction above 0, such as "1/255", or "match"')
    return number


StepSize = Annotated[float | Literal["match"], BeforeValidator(as_step_size)]
Share = Annotated[float, Field(ge=0, le=1)]
UnlabelledShare = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0, le=10**9)]
Temperature = Annotated[float, Field(gt=0, le=10**6)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_.-]*$")]
