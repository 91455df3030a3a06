"""How a long analysis says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


def no_progress(done: int, total: int) -> None:
    """Progress that nobody follows."""
