"""Numbers, lists and errors as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LONGEST = 300  # characters; largest length of an error message


def duration(seconds: float) -> str:
    """ "45 s", "4 min", "3.1 h", "12 d" """
    for size, unit, digits in ((86400, "d", 0), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def short_number(number: float) -> str:
    """ "1.86 M", "77.0 k", "512" """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{2 if letter == 'M' else 1}f} {letter}"
    return f"{number:.0f}"


def counted(number: int, thing: str) -> str:
    """ "1 teacher", "2 teachers" """
    return f"{number} {thing}{'s' * (number != 1)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    try:
        lines = str(error).splitlines()
    except Exception:  # a foreign error class can raise in __str__
        lines = []
    return cut((lines or [type(error).__name__])[0], 100)


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c" """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def suggestion(word: str, known: Iterable[str], others: str = "known are") -> str:
    """ "did you mean 'alpha'?", or a list of all known words if none is similar"""
    matches = get_close_matches(word, known := list(known), n=1)
    return f"did you mean '{matches[0]}'?" if matches else f"{others} {', '.join(known)}"


def extra(name: str) -> str:
    """The command that installs an extra; PyPI's `polyphony` is an unrelated project."""
    return f"pip install '.[{name}]' in Polyphony's folder"


class UserError(Exception):
    """An error that the user can fix; its message is one sentence."""

    def __init__(self, fault: str) -> None:
        super().__init__(one_line(fault))


class SettingError(UserError, ValueError):
    """A setting is invalid; the message names the setting and its limit."""


def one_line(fault: str) -> str:
    """An error message as one printable line of at most 300 characters; long values are shortened."""
    line = printable(" ".join(fault.split()))
    if len(line) > LONGEST:
        line = re.sub(r"\S{81,}", lambda value: cut(value[0], 80), line)
    return cut(line, LONGEST)


def printable(text: str) -> str:
    """The text, with "?" for every character that a terminal might interpret or reject."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def cut(text: str, longest: int) -> str:
    """The text; if it is longer than `longest` characters, "…" replaces its middle."""
    return text if len(text) <= longest else f"{text[: longest - longest // 3 - 1]}…{text[-(longest // 3) :]}"
