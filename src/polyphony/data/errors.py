"""What every reader raises when the data is not what it should be."""

from __future__ import annotations

from polyphony.words import sentence


class DataError(ValueError):
    """A fault in data on disk: one sentence that names the file, the fault and what to do."""

    def __init__(self, fault: str) -> None:
        super().__init__(sentence(fault))


class MissingDataError(DataError):
    """A known data set is not on this machine."""
