"""Means that can be compared: mean ± s.d. over seeds, means over full grids."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MeanSd:
    """Mean and sample standard deviation (n − 1) over n seeds; the deviation of one seed is NaN."""

    n: int
    mean: float
    sd: float

    @property
    def half(self) -> float:
        """Half of the mean's 95 % t-interval; NaN for one seed."""
        from scipy.special import stdtrit  # slow to import, and seldom needed

        return float(stdtrit(self.n - 1, 0.975) * self.sd / math.sqrt(self.n))


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample standard deviation of one score over seeds."""
    if not values:
        raise ValueError("a mean over seeds needs at least one seed.")
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return MeanSd(len(values), statistics.fmean(values), statistics.stdev(values) if finite else math.nan)


def paired(differences: Sequence[float]) -> MeanSd:
    """How far two sides are apart, judged by the differences of their pairs; NaN where one is infinite."""
    return mean_sd(differences if all(map(math.isfinite, differences)) else [math.nan] * len(differences))


def grid_mean(scores: Mapping[tuple[str, int], float]) -> float:
    """The mean of a score given for each (type, severity) of corrupted inputs.

    The grid must be full: means over different severities, or types, would not compare.
    """
    types, levels = ({at[place]: None for at in scores} for place in (0, 1))
    missing = [f"{kind} {level}" for kind in types for level in levels if (kind, level) not in scores]
    if missing or not scores:
        raise ValueError(f"corruption scores are missing: {', '.join(missing) or 'all of them'}.")
    return statistics.fmean(scores.values())
