"""What a student needs to answer at a chosen coverage, or with sets: thresholds from validation images."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from polyphony._util.settings import Settings
from polyphony._util.text import UserError
from polyphony.runs.rows import Threshold


class CoverageError(UserError, ValueError):
    """A coverage that a student cannot be asked for."""


class Thresholds(Settings):
    """One entry for each of `coverages`, ascending. A coverage between two takes the higher one's."""

    coverages: tuple[float, ...]
    confidences: tuple[float, ...]  # calibrated: images with at least this are so large a share
    scores: tuple[float | None, ...]  # a set holds classes whose −log p is at most this; none for all classes
    temperature: float  # of p in the sets

    @classmethod
    def of(cls, rows: Sequence[Threshold]) -> Thresholds | None:
        """A student's rows of the run's table; nothing where there are none."""
        rows = sorted(rows, key=lambda row: row.coverage)
        if not rows:
            return None
        return cls(
            coverages=tuple(row.coverage for row in rows),
            confidences=tuple(row.confidence for row in rows),
            scores=tuple(None if math.isinf(row.score) else row.score for row in rows),
            temperature=rows[0].temperature,
        )

    def confidence(self, coverage: float) -> float:
        """The confidence from which the student answers, so that it answers this share of the images."""
        return self.confidences[self._place(coverage)]

    def score(self, coverage: float) -> float:
        """The largest −log p of a class in a set of this coverage; inf for all classes."""
        score = self.scores[self._place(coverage)]
        return math.inf if score is None else score

    def _place(self, coverage: float) -> int:
        if not self.coverages[0] <= coverage <= self.coverages[-1]:
            ends = f"{self.coverages[0]:g} to {self.coverages[-1]:g}"
            raise CoverageError(f"a coverage must be from {ends}, not {coverage:g}")
        return bisect_left(self.coverages, coverage)
