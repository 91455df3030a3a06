"""Deep Ensemble Equivalent: how many teachers, averaged, are as good as this model (by NLL).

A *curve* is the NLL of deep ensembles of size 0, 1, 2, …; size 0 is the uniform predictor, NLL = ln K.
It needs more teachers than the student has members: a good student may be better than M teachers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from polyphony.metrics.predictions import Predictions
from polyphony.metrics.probabilities import check, mean_log_probs, member_log_probs
from polyphony.metrics.quality import label_nll
from polyphony.metrics.temperature import fit_temperatures

MAX_SUBSETS = 4096
"""Up to this many subsets in all (12 teachers), a curve is a mean over all subsets."""
RANDOM_SUBSETS = 128
"""Number of random subsets of each size otherwise."""
_BLOCK = 2**20  # log-probabilities in memory at once: 8 MB


def dee(nll: float, curve: Sequence[float]) -> float:
    """The paper's DEE: the smallest ℓ ≥ 0 with a linearly interpolated NLL(ℓ) ≤ nll.

    0 for a model no better than uniform, `math.inf` for one better than the curve's end, NaN for a NaN.
    """
    if math.isnan(nll) or any(map(math.isnan, curve)):
        return math.nan
    if nll >= curve[0]:
        return 0.0
    for size, (above, below) in enumerate(itertools.pairwise(curve), start=1):
        if below <= nll:
            # From an infinite NLL the interpolated curve stays infinite up to the next size.
            return float(size) if above == math.inf else size - 1 + (above - nll) / (above - below)
    return math.inf


def dee_curve(teachers: Predictions, rng: torch.Generator, valid: Predictions | None = None) -> list[float]:
    """NLL of deep ensembles of size 0..T: for each size the mean over `teacher_subsets` of the T teachers.

    With `valid`, the same teachers' validation predictions, the NLL of every subset is at the temperature
    fitted there. Size 0, the uniform predictor, has none. Equal generators draw equal subsets.
    """
    score = _nll_of(teachers) if valid is None else _calibrated_nll_of(teachers, valid)
    curve = [math.log(teachers.logits.shape[-1])]
    for subsets in teacher_subsets(teachers.members, rng):
        block = max(1, _BLOCK // (len(subsets) * teachers.logits[0].numel()))
        curve.append(float(torch.cat([score(part) for part in subsets.split(block, dim=1)]).mean()))
    return curve


def _nll_of(teachers: Predictions) -> Callable[[Tensor], Tensor]:
    """A function that returns the NLL of subsets of teachers. [size s] → [s]"""
    log_probs = member_log_probs(teachers.logits)
    label_log_probs = torch.stack([-label_nll(member, teachers.labels) for member in log_probs])
    return lambda subsets: -mean_log_probs(label_log_probs[subsets]).mean(-1)


def _calibrated_nll_of(teachers: Predictions, valid: Predictions) -> Callable[[Tensor], Tensor]:
    """The same, with each subset at the temperature that fits its validation predictions."""
    if teachers.members != valid.members:
        raise ValueError(f"{teachers.members} teachers on test but {valid.members} on validation.")
    log_probs, valid_log_probs = member_log_probs(teachers.logits), member_log_probs(valid.logits)
    _, labels = check(log_probs[0], teachers.labels)
    _, valid_labels = check(valid_log_probs[0], valid.labels)

    def score(subsets: Tensor) -> Tensor:
        temperatures = fit_temperatures(mean_log_probs(valid_log_probs[subsets]), valid_labels)
        scaled = (mean_log_probs(log_probs[subsets]) / temperatures[:, None, None]).log_softmax(-1)
        return -scaled[:, torch.arange(len(labels)), labels].mean(-1)

    return score


def teacher_subsets(teachers: int, rng: torch.Generator) -> Iterator[Tensor]:
    """For each size 1..T in turn, subsets of the teachers as columns. → [size s], …

    All subsets if there are at most `MAX_SUBSETS` of all sizes together. Otherwise `RANDOM_SUBSETS` of each
    size, or all subsets of a size that has fewer.
    """
    limit = RANDOM_SUBSETS if 2**teachers - 1 > MAX_SUBSETS else MAX_SUBSETS
    for size in range(1, teachers + 1):
        if math.comb(teachers, size) <= limit:
            subsets = list(itertools.combinations(range(teachers), size))
        else:
            subsets = _draw_subsets(teachers, size, limit, rng)
        yield torch.tensor(subsets).T


def _draw_subsets(teachers: int, size: int, count: int, rng: torch.Generator) -> list[tuple[int, ...]]:
    subsets: dict[tuple[int, ...], None] = {}  # without duplicates, in the order of their draws
    while len(subsets) < count:
        subset = torch.randperm(teachers, generator=rng)[:size].tolist()
        subsets[tuple(sorted(subset))] = None
    return list(subsets)
