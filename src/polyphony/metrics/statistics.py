"""Means over seeds with standard deviations, and means of paired differences with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
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
        from scipy.special import stdtrit  # slow to import

        return float(stdtrit(self.n - 1, 0.975) * self.sd / math.sqrt(self.n))


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample standard deviation of one score over seeds."""
    if not values:
        raise ValueError("a mean over seeds needs at least one seed.")
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return MeanSd(len(values), statistics.fmean(values), statistics.stdev(values) if finite else math.nan)


def paired(differences: Sequence[float]) -> MeanSd:
    """Mean and standard deviation of paired differences; NaN if a difference is not finite."""
    return mean_sd(differences if all(map(math.isfinite, differences)) else [math.nan] * len(differences))
