"""Deep Ensemble Equivalent: how many teachers, averaged, are as good as this model (by NLL).

A *curve* is the NLL of deep ensembles of size 0, 1, 2, …; size 0 is the uniform predictor, NLL = ln K.
It needs more teachers than a student has members; a good student is past its end otherwise.
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

EVERY = 4096
"""Up to this many subsets in all (12 teachers), a curve is a mean over every subset."""
DRAWN = 128
"""Number of random subsets of each size otherwise."""
_BLOCK = 2**20  # log-probabilities in memory at once: 8 MB


def dee(nll: float, curve: Sequence[float]) -> float:
    """The paper's DEE: the least ℓ ≥ 0 whose linearly interpolated NLL(ℓ) ≤ nll.

    0 for a model no better than uniform, `math.inf` past the end of the curve, NaN for a NaN.
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
    """NLL of deep ensembles of size 0..T, each size a mean over `teacher_subsets` of the T teachers.

    With `valid`, the same teachers on validation, every subset is first scaled by the temperature that suits
    it there. The uniform predictor has none: size 0 is ln K. Equal generators draw equal subsets.
    """
    score = _nll_of(teachers) if valid is None else _calibrated_nll_of(teachers, valid)
    curve = [math.log(teachers.logits.shape[-1])]
    for chosen in teacher_subsets(teachers.members, rng):
        at_once = max(1, _BLOCK // (len(chosen) * teachers.logits[0].numel()))
        curve.append(float(torch.cat([score(part) for part in chosen.split(at_once, dim=1)]).mean()))
    return curve


def _nll_of(teachers: Predictions) -> Callable[[Tensor], Tensor]:
    """NLL of each subset of teachers. [size s] → [s]"""
    own = torch.stack([-label_nll(each, teachers.labels) for each in member_log_probs(teachers.logits)])
    return lambda chosen: -mean_log_probs(own[chosen]).mean(-1)


def _calibrated_nll_of(teachers: Predictions, valid: Predictions) -> Callable[[Tensor], Tensor]:
    """The same, each subset at its validation temperature."""
    if teachers.members != valid.members:
        raise ValueError(f"{teachers.members} teachers on test but {valid.members} on validation.")
    tested, fitted = member_log_probs(teachers.logits), member_log_probs(valid.logits)
    (_, labels), (_, valid_labels) = check(tested[0], teachers.labels), check(fitted[0], valid.labels)

    def score(chosen: Tensor) -> Tensor:
        temperatures = fit_temperatures(mean_log_probs(fitted[chosen]), valid_labels)
        scaled = (mean_log_probs(tested[chosen]) / temperatures[:, None, None]).log_softmax(-1)
        return -scaled[:, torch.arange(len(labels)), labels].mean(-1)

    return score


def teacher_subsets(teachers: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Subsets of each size 1..T in turn, one per column. → [size s], …

    All subsets if there are at most `EVERY` of all sizes together; else `DRAWN` random ones of each size, or
    all of a size that has no more.
    """
    limit = DRAWN if 2**teachers - 1 > EVERY else EVERY
    for size in range(1, teachers + 1):
        if math.comb(teachers, size) <= limit:
            chosen = list(itertools.combinations(range(teachers), size))
        else:
            chosen = _draw_subsets(teachers, size, limit, rng)
        yield torch.tensor(chosen).T


def _draw_subsets(teachers: int, size: int, count: int, rng: torch.Generator) -> list[tuple[int, ...]]:
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < count:
        chosen = torch.randperm(teachers, generator=rng)[:size].tolist()
        drawn[tuple(sorted(chosen))] = None
    return list(drawn)
