"""How far to trust a number: bootstrap intervals over examples, mean ± s.d. over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """A score on all examples, and the bounds of its percentile bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeanSd:
    """Mean and sample standard deviation (n − 1) over n seeds; the deviation of one seed is NaN."""

    n: int
    mean: float
    sd: float


def bootstrap(
    score: Callable[[Tensor], float],
    examples: int,
    rng: torch.Generator,
    replicates: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap over examples of any score, given as a function of example indices [n].

    `bootstrap(lambda i: ece(log_probs[i], labels[i]), len(labels), rng)`: the indices are drawn with
    replacement, as many as there are examples.
    """
    drawn = [score(torch.randint(examples, (examples,), generator=rng)) for _ in range(replicates)]
    tail = (1 - level) / 2
    # Between two infinite replicates linear interpolation makes NaN; the nearest one does not.
    bounds = torch.tensor(drawn, dtype=torch.float64).quantile(
        torch.tensor([tail, 1 - tail], dtype=torch.float64), interpolation="nearest"
    )
    return Interval(score(torch.arange(examples)), float(bounds[0]), float(bounds[1]))


def bootstrap_mean(
    values: Tensor, rng: torch.Generator, replicates: int = 1000, level: float = 0.95
) -> Interval:
    """`bootstrap` of the mean of one number per example. [n] → Interval"""
    return bootstrap(lambda index: float(values[index].mean()), len(values), rng, replicates, level)


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample standard deviation of one score over seeds."""
    if not values:
        raise ValueError("a mean over seeds needs at least one seed.")
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return MeanSd(len(values), statistics.fmean(values), statistics.stdev(values) if finite else math.nan)


def format_mean_sd(value: MeanSd, digits: int = 3) -> str:
    """ "0.180 ± 0.004", or the mean alone where there is no deviation."""
    mean = f"{value.mean:.{digits}f}"
    return mean if math.isnan(value.sd) else f"{mean} ± {value.sd:.{digits}f}"
