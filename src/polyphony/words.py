"""Numbers and lists as people say them."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """ "45 s", "4 min", "3.1 h", "12 d" """
    for size, unit, digits in ((86400, "d", 0), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def count(things: float) -> str:
    """ "1.86 M", "77.0 k", "512" """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if things >= size:
            return f"{things / size:.{2 if letter == 'M' else 1}f} {letter}"
    return f"{things:.0f}"


def counted(number: int, thing: str) -> str:
    """ "1 teacher", "2 teachers" """
    return f"{number} {thing}{'s' * (number != 1)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c" """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
