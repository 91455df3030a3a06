"""Numbers that make sense; ValueError, one sentence, names the first that does not."""

from __future__ import annotations

HUGE = 1e100  # the square of a larger number may be none


def positive(**numbers: float) -> None:
    """Above zero, and finite."""
    for name, value in numbers.items():
        if not 0 < value < HUGE:
            raise ValueError(f"{name} must be a number above 0, not {value}")


def not_negative(**numbers: float) -> None:
    """Zero or above, and finite."""
    for name, value in numbers.items():
        if not 0 <= value < HUGE:
            raise ValueError(f"{name} must be a number from 0 on, not {value}")


def shares(**numbers: float) -> None:
    """From zero to one."""
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be from 0 to 1, not {value}")
