"""Settings that make sense: a SettingError, one sentence, names the first that does not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any

HUGE = 1e100  # the square of a larger number may be infinite
MANY = 10**9  # of anything that is counted
MOST_MEMBERS = 1024


class SettingError(ValueError):
    """A setting with which nothing can be done."""


def positive(**numbers: Any) -> None:
    """Above zero, and finite."""
    check(numbers, Real, lambda value: 0 < value < HUGE, "a number above 0")


def not_negative(**numbers: Any) -> None:
    """Zero or above, and finite."""
    check(numbers, Real, lambda value: 0 <= value < HUGE, "a number from 0 on")


def shares(**numbers: Any) -> None:
    """From zero to one."""
    check(numbers, Real, lambda value: 0 <= value <= 1, "from 0 to 1")


def between(low: float, high: float, **numbers: Any) -> None:
    """Above one number and below another."""
    check(numbers, Real, lambda value: low < value < high, f"a number above {low} and below {high}")


def counts(least: int = 1, most: int = MANY, **numbers: Any) -> None:
    """Whole numbers."""
    check(numbers, Integral, lambda value: least <= value <= most, f"a whole number from {least} to {most:,}")


def one_of(allowed: Collection[object], **values: Any) -> None:
    """One of a few."""
    check(values, object, lambda value: value in allowed, f"one of {', '.join(map(str, allowed))}")


def check(values: dict[str, Any], kind: type, fits: Callable[[Any], bool], what: str) -> None:
    """Raise for the first value that is not of a kind, or does not fit; a truth value is no number."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind) or not fits(value):
            raise SettingError(f"{name} must be {what}, not {told(value)}")


def told(value: object) -> str:
    """A value in at most sixty characters."""
    try:
        return str(value).replace("\n", " ")[:60]
    except ValueError:  # of thousands of digits, which Python does not write
        return "a number of thousands of digits"
