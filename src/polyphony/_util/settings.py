"""Settings: frozen and validated values; in a recipe they are a table.

An invalid value in Python raises a SettingError. A recipe's errors are worded in the same way.
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
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import ErrorDetails

from polyphony._util.text import SettingError, counted, suggestion

MOST_MEMBERS = 1024
HUGE = 1e100  # upper limit of numbers; the squares of larger ones may overflow
FINITE = ConfigDict(allow_inf_nan=False)


def plain(value: Any) -> Any:
    """A NumPy number as a Python number, since pydantic accepts only those; other values unchanged."""
    return value.item() if hasattr(value, "item") else value


def fraction(value: Any) -> Any:
    """The value of a fraction such as "1/255"; other values unchanged."""
    numerator, slash, denominator = value.partition("/") if isinstance(value, str) else ("", "", "")
    try:
        return float(numerator) / float(denominator) if slash else value
    except (ValueError, ArithmeticError):
        return value


def as_table(value: object) -> object:
    """A string as a table with this `kind`; other values unchanged."""
    return {"kind": value} if isinstance(value, str) else value


def as_tuple(value: object) -> object:
    """A list as a tuple: pydantic converts lists in JSON, but not lists that `as_table` returns."""
    return tuple(value) if isinstance(value, list) else value


def table_or_callable(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """A callable unchanged; `read` validates any other value as a table."""
    return value if callable(value) else read(value)


def is_stored(info: ValidationInfo) -> bool:
    """Whether a recipe is read from a run folder: it must open, whatever later versions refuse."""
    return bool((info.context or {}).get("stored"))


def at_most_one(step_size: float, info: ValidationInfo) -> float:
    """The step size; raises a ValueError if it is above 1, the range of pixels."""
    if step_size > 1 and not is_stored(info):
        raise ValueError("must be at most 1 (pixels are in [0, 1])")
    return step_size


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
    """Base class of settings: frozen values; unknown names are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    def __init__(self, *values: Any, **named: Any) -> None:
        """Positional values are in the order of the fields, without `kind`.

        Raises a SettingError for the first invalid setting.
        """
        names = [name for name in type(self).model_fields if name != "kind"]
        if len(values) > len(names):
            raise SettingError(
                f"{type(self).__name__} takes at most {counted(len(names), 'value')}, not {len(values)}"
            )
        try:
            super().__init__(**dict(zip(names, values, strict=False)), **named)
        except ValidationError as error:
            setting = error.errors()[0]["loc"][:1]
            # A setting that allows several types has an error for each: report the last.
            fault = [fault for fault in error.errors() if fault["loc"][:1] == setting][-1]
            raise SettingError(setting_message(fault, type(self).__name__, type(self).model_fields)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined] # lets pydantic skip it for tables

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed; raises a SettingError as the constructor does."""
        return type(self)(**dict(self) | changes)

    @property
    def label(self) -> str:
        """The name to print: the `kind`, or empty if there is only one kind."""
        return str(getattr(self, "kind", ""))

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The settings that differ from their defaults, as JSON: a stored result depends on them.

        `only` restricts it to some settings. Settings at their defaults are left out, so that results stay
        valid if a later version adds a setting.
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if only is None or name in only}
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in values}
        return {
            name: as_spec(value, defaults[name]) for name, value in values.items() if value != defaults[name]
        }

    def spec_but(self, others: Collection[str]) -> dict[str, Any]:
        """`spec` without some settings."""
        return self.spec(type(self).model_fields.keys() - others)


def as_spec(value: Any, default: Any = None) -> Any:
    """The value of a setting as JSON; nested settings include their kind if it is not the default's."""
    if isinstance(value, tuple | list):
        return [as_spec(item) for item in value]
    if not isinstance(value, Settings):
        return value
    has_kind = "kind" in type(value).model_fields
    other_kind = has_kind and default is not None and type(value) is not type(default)
    return value.spec() | ({"kind": value.label} if other_kind else {})


def check(kind: Any, **values: Any) -> None:
    """Raise a SettingError for the first value that does not have a type such as `Count` or `Share`."""
    for name, value in values.items():
        try:
            TypeAdapter(kind, config=FINITE).validate_python(value)
        except ValidationError as error:
            raise SettingError(complaint(name, error.errors()[0])) from None


def setting_message(fault: ErrorDetails, owner: str, names: Collection[str]) -> str:
    """Pydantic's error of a setting as one sentence. `names` are the settings that the owner has."""
    name = str(fault["loc"][0]) if fault["loc"] else ""
    match fault["type"]:
        case "extra_forbidden":
            return f"{owner} has no setting '{name}'; {suggestion(name, names)}"
        case "missing":
            return f"{owner} needs the setting '{name}'"
    return complaint(name, fault)


def complaint(name: str, fault: ErrorDetails) -> str:
    """The error of a setting as text: "alpha must be greater than 0, not -1"."""
    message = fault["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be ", "must be ", 1).replace("an object", "a table")
    if message.startswith("must "):
        return f"{name} {message}, not {short_repr(fault['input'])}"
    return f"{name}: {message}" if name else message


def short_repr(value: object) -> str:
    """The first 60 characters of a value's repr, on one line."""
    try:
        return repr(value).replace("\n", " ")[:60]
    except ValueError:  # Python refuses to print numbers with thousands of digits
        return "a number of thousands of digits"
