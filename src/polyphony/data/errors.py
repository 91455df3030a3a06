"""What every reader raises when the data is not what it should be."""

from __future__ import annotations

from polyphony._util.text import UserError


class DataError(UserError, ValueError):
    """A fault in data on disk: one sentence that names the file, the fault and what to do."""


class MissingDataError(DataError):
    """A known data set is not on this machine."""

    def __init__(self, sentence: str, name: str = "") -> None:
        super().__init__(sentence)
        self.name = name


class MissingCorruptedError(MissingDataError):
    """Corrupted images of a data set are neither here nor made."""
