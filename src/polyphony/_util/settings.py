"""Settings: frozen, checked values; in a recipe they are a table.

A bad value raises a SettingError, whether it comes from Python or from a recipe.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import ErrorDetails

from polyphony._util.text import SettingError, suggestion

MOST_MEMBERS = 1024
HUGE = 1e100  # the square of a larger number may overflow
FINITE = ConfigDict(allow_inf_nan=False)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, since pydantic accepts no others."""
    return value.item() if hasattr(value, "item") else value


def fraction(value: Any) -> Any:
    """The value of a fraction such as "1/255"; other values unchanged."""
    above, slash, below = value.partition("/") if isinstance(value, str) else ("", "", "")
    try:
        return float(above) / float(below) if slash else value
    except (ValueError, ArithmeticError):
        return value


def as_table(value: object) -> object:
    """The name of a kind as a table; other values unchanged."""
    return {"kind": value} if isinstance(value, str) else value


def as_tuple(value: object) -> object:
    """A list as a tuple: pydantic converts JSON's lists, but not those that `as_table` returns."""
    return tuple(value) if isinstance(value, list) else value


def table_or_callable(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """A callable unchanged, anything else as a table."""
    return value if callable(value) else read(value)


Whole = Annotated[int, BeforeValidator(plain), Field(strict=True)]
Real = Annotated[float, BeforeValidator(plain), Field(strict=True)]
Count = Annotated[Whole, Field(gt=0, le=10**9)]
CountFromZero = Annotated[Whole, Field(ge=0, le=10**9)]
Members = Annotated[Whole, Field(gt=0, le=MOST_MEMBERS)]
Positive = Annotated[Real, Field(gt=0, lt=HUGE)]
NotNegative = Annotated[Real, Field(ge=0, lt=HUGE)]
Share = Annotated[Real, Field(ge=0, le=1)]
Fraction = Annotated[Real, Field(gt=0, lt=1)]
Temperature = Annotated[Real, Field(gt=0, le=10**6)]


class Settings(BaseModel):
    """Frozen values with known names."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Positional values are in the order of the fields, without `kind`."""
        names = [name for name in type(self).model_fields if name != "kind"]
        try:
            super().__init__(**dict(zip(names, values, strict=False)), **named)
        except ValidationError as error:
            first = error.errors()[0]["loc"][:1]  # the last error of a setting of several types
            fault = [each for each in error.errors() if each["loc"][:1] == first][-1]
            raise SettingError(sentence(fault, type(self).__name__, type(self).model_fields)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined] # pydantic need not call it for tables

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed."""
        return type(self)(**dict(self) | changes)

    @property
    def label(self) -> str:
        """Its name for people: the kind, if it is one of several."""
        return str(getattr(self, "kind", ""))

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The settings that are not at their defaults, or some of them: what a stored result depends on.

        A setting that a later version adds with a default is not in it, so that older results stay valid.
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if only is None or name in only}
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in values}
        return {
            name: as_spec(value, defaults[name]) for name, value in values.items() if value != defaults[name]
        }

    def spec_but(self, others: Collection[str]) -> dict[str, Any]:
        return self.spec(type(self).model_fields.keys() - others)


def as_spec(value: Any, default: Any = None) -> Any:
    """The value of a setting as JSON; settings of another kind than the default's include their kind."""
    if isinstance(value, tuple | list):
        return [as_spec(each) for each in value]
    if not isinstance(value, Settings):
        return value
    other = default is not None and type(value) is not type(default) and "kind" in type(value).model_fields
    return value.spec() | ({"kind": value.label} if other else {})


def check(kind: Any, **values: Any) -> None:
    """Raise a SettingError for the first value that is not of a kind such as `Count` or `Share`."""
    for name, value in values.items():
        try:
            TypeAdapter(kind, config=FINITE).validate_python(value)
        except ValidationError as error:
            raise SettingError(complaint(name, error.errors()[0])) from None


def sentence(fault: ErrorDetails, owner: str, known: Collection[str]) -> str:
    """The error of a setting in Python, as one sentence."""
    name = str(fault["loc"][0]) if fault["loc"] else ""
    match fault["type"]:
        case "extra_forbidden":
            return f"{owner} has no setting '{name}'; {suggestion(name, known)}"
        case "missing":
            return f"{owner} needs the setting '{name}'"
    return complaint(name, fault)


def complaint(name: str, fault: ErrorDetails) -> str:
    """What is wrong with a setting: "alpha must be greater than 0, not -1"."""
    message = fault["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be ", "must be ", 1).replace("an object", "a table")
    if message.startswith("must "):
        return f"{name} {message}, not {shown(fault['input'])}"
    return f"{name}: {message}" if name else message


def shown(value: object) -> str:
    """A value in at most 60 characters."""
    try:
        return repr(value).replace("\n", " ")[:60]
    except ValueError:  # Python refuses to print numbers with thousands of digits
        return "a number of thousands of digits"
