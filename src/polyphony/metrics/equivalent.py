"""Deep Ensemble Equivalent: how many teachers, averaged, are as good as this model (by NLL).

A *curve* is the NLL of deep ensembles of size 0, 1, 2, …; size 0 is the uniform predictor, NLL = ln K.
It needs more teachers than a student has members, or a good student is past its end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyphony.metrics.probabilities import mean_log_probs, member_log_probs
from polyphony.metrics.quality import label_nll, nll
from polyphony.metrics.statistics import format_mean_sd, mean_sd
from polyphony.metrics.temperature import fit_temperature, temper


def dee(nll: float, curve: Sequence[float]) -> float:
    """The paper's DEE: the least ℓ ≥ 0 whose linearly interpolated NLL(ℓ) ≤ nll.

    0 for a model no better than uniform, `math.inf` past the end of the curve, NaN for a NaN.
    """
    return _first_at_most(nll, curve, 0)


def dee_floored_at_one(nll: float, curve: Sequence[float]) -> float:
    """DEE as Ashukha et al. ("Pitfalls of in-domain uncertainty estimation") define it: the least ℓ ≥ 1.

    A model worse than one teacher scores 1 here, and between 0 and 1 in the paper's convention.
    """
    return _first_at_most(nll, curve, 1)


def format_dee(value: float, size: int) -> str:
    """A DEE for people: two decimals, or ">size" past the end of a curve of `size` teachers."""
    return f">{size}" if value == math.inf else f"{value:.2f}"


def format_dees(values: Sequence[float], size: int) -> str:
    """DEEs over seeds for people: mean ± s.d., or where some are past the curve the least and the largest."""
    if all(map(math.isfinite, values)):
        return format_mean_sd(mean_sd(values), 2)
    least, largest = format_dee(min(values), size), format_dee(max(values), size)
    return least if least == largest else f"{least} … {largest}"


def dee_curve(logits: Tensor, labels: Tensor, rng: torch.Generator, subsets: int = 32) -> list[float]:
    """NLL of deep ensembles of size 0..T, each a mean over up to `subsets` random subsets of the T teachers.

    logits [t n k], labels [n] → T + 1 numbers. All subsets of a size are taken when there are no more.
    """
    log_probs = member_log_probs(logits)
    own = torch.stack([-label_nll(teacher, labels) for teacher in log_probs])[..., None]
    return _curve(
        len(logits), logits.shape[-1], rng, subsets, lambda s: -float(mean_log_probs(own[s]).mean())
    )


def calibrated_dee_curve(
    logits: Tensor,
    labels: Tensor,
    valid_logits: Tensor,
    valid_labels: Tensor,
    rng: torch.Generator,
    subsets: int = 32,
) -> list[float]:
    """`dee_curve` where every subset is first scaled by the temperature that suits it on validation.

    logits [t n k], valid_logits [t v k], the teachers in the same order → T + 1 numbers. Uniform
    predictions have no temperature: size 0 stays ln K. Equal generators draw the subsets of `dee_curve`.
    """
    if len(logits) != len(valid_logits):
        raise ValueError(f"{len(logits)} teachers on test but {len(valid_logits)} on validation.")
    log_probs, valid = member_log_probs(logits), member_log_probs(valid_logits)

    def calibrated_nll(subset: list[int]) -> float:
        temperature = fit_temperature(mean_log_probs(valid[subset]), valid_labels)
        return nll(temper(mean_log_probs(log_probs[subset]), temperature), labels)

    return _curve(len(logits), logits.shape[-1], rng, subsets, calibrated_nll)


def teacher_subsets(teachers: int, size: int, limit: int, rng: torch.Generator) -> list[list[int]]:
    """`limit` different subsets of `size` out of `teachers`, or all of them when there are no more."""
    if math.comb(teachers, size) <= limit:
        return [list(subset) for subset in itertools.combinations(range(teachers), size)]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < limit:
        chosen = torch.randperm(teachers, generator=rng)[:size].tolist()
        drawn[tuple(sorted(chosen))] = None
    return [list(subset) for subset in drawn]


def _curve(
    teachers: int, classes: int, rng: torch.Generator, subsets: int, score: Callable[[list[int]], float]
) -> list[float]:
    curve = [math.log(classes)]
    for size in range(1, teachers + 1):
        scores = [score(subset) for subset in teacher_subsets(teachers, size, subsets, rng)]
        curve.append(math.fsum(scores) / len(scores))
    return curve


def _first_at_most(nll: float, curve: Sequence[float], start: int) -> float:
    if math.isnan(nll) or any(math.isnan(value) for value in curve):
        return math.nan
    if nll >= curve[start]:
        return float(start)
    for size in range(start + 1, len(curve)):
        above, below = curve[size - 1], curve[size]
        if below <= nll:
            # From an infinite NLL the interpolated curve stays infinite up to the next size.
            return float(size) if above == math.inf else size - 1 + (above - nll) / (above - below)
    return math.inf
