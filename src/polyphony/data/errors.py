"""What every reader raises when the data is not what it should be."""

from __future__ import annotations

from polyphony.words import SentenceError


class DataError(SentenceError, ValueError):
    """A fault in data on disk: one sentence that names the file, the fault and what to do."""


class MissingDataError(DataError):
    """A known data set is not on this machine."""
