"""Prediction sets that contain the true label with a chosen probability (split conformal prediction).

Each class of an image has a score, larger for a worse fit. The threshold for a coverage c is the
⌈(n + 1) c⌉-th smallest score of the true labels of n calibration images. A set contains every class with a
score up to the threshold. If a new image comes from the same distribution, its set contains the true label
with probability c or more, for any network. The guarantee is **marginal**: it holds on average over images,
not for each class or each kind of image.

Validation images are divided (`two_parts`): some fit the temperature, the others set the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.probabilities import check
from polyphony.metrics.selective import ROUNDING
from polyphony.metrics.temperature import fit_temperature, temper

SetMeasure = Callable[[Tensor], Tensor]
"""Log-probabilities [n k] → the score of each class [n k], larger for a worse fit."""

FITTED = 4  # a quarter of the validation images fits the temperature; the others set the threshold
SPLIT_SEED = 0


def lac(log_probs: Tensor) -> Tensor:
    """−log p_k: sets of all classes above a fixed probability (Sadinle et al. 2019). [n k] → [n k]

    The paper's score 1 − p_k gives the same sets, but loses the digits of small p. These sets are the
    smallest on average. A set is empty if no class is probable enough.
    """
    return -log_probs.double()


@dataclass(frozen=True)
class APS:
    """The total probability of all more probable classes (Romano et al. 2020). [n k] → [n k]

    We omit the paper's random number: equal images have equal sets, and a set always contains the most
    probable class. So the coverage is never below the accuracy. A `penalty` for each class after the first
    `free` ones gives smaller sets (RAPS, Angelopoulos et al. 2021; default: none).
    """

    penalty: float = 0.0
    free: int = 1

    def __call__(self, log_probs: Tensor) -> Tensor:
        probs, order = log_probs.double().exp().sort(dim=-1, descending=True, stable=True)
        excess = (torch.arange(1.0, probs.shape[-1] + 1).double() - self.free).clamp_min(0)
        above = probs.cumsum(-1) - probs + self.penalty * excess
        return torch.empty_like(above).scatter_(-1, order, above)


@dataclass(frozen=True, eq=False)
class SetRule:
    """Turns log-probabilities into prediction sets, for any coverage."""

    scores: Tensor
    """Scores of the true labels of the calibration images, ascending. [n]"""
    temperature: float
    """Temperature, fitted on other validation images."""
    fitted: int
    """Number of images that fitted the temperature."""
    score: SetMeasure = lac

    @classmethod
    def calibrated(cls, log_probs: Tensor, labels: Tensor, score: SetMeasure = lac) -> SetRule:
        """The rule of a model, from its uncalibrated validation predictions. [n k], [n]"""
        log_probs, labels = check(log_probs, labels)
        fit, rest = two_parts(len(labels))
        temperature = fit_temperature(log_probs[fit], labels[fit]) if len(fit) else 1.0
        scores = score(temper(log_probs[rest], temperature)).gather(1, labels[rest, None])[:, 0]
        return cls(scores.sort().values, temperature, len(fit), score)

    def threshold(self, coverage: float) -> float:
        """The ⌈(n + 1) · coverage⌉-th smallest score; ∞ (sets of all classes) if n is too small."""
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage must lie between 0 and 1; got {coverage}.")
        place = math.ceil((len(self.scores) + 1) * coverage - ROUNDING)
        return float(self.scores[place - 1]) if place <= len(self.scores) else math.inf

    def sets(self, log_probs: Tensor, coverage: float) -> Tensor:
        """Whether each class is in the image's set, from uncalibrated predictions. [n k] → bool [n k]"""
        return self.score(temper(log_probs, self.temperature)) <= self.threshold(coverage)


def two_parts(count: int) -> tuple[Tensor, Tensor]:
    """Rows of the validation images that fit the temperature, and of those that set the threshold.

    They are a quarter and the rest of a fixed shuffle: random samples for any order of the images.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return tuple(part.sort().values for part in order.tensor_split([count // FITTED]))  # type: ignore[return-value]


@dataclass(frozen=True)
class SetQuality:
    """Coverage and size of prediction sets on labelled images."""

    n: int
    coverage: float
    """Share of the sets that contain the true label."""
    size: float
    """Mean number of classes in a set."""
    empty: float
    """Share of the sets that are empty."""


def set_quality(sets: Tensor, labels: Tensor) -> SetQuality:
    """Coverage and size of sets. bool [n k], [n], n ≥ 1"""
    size = sets.sum(-1).double()
    covered = sets.gather(1, labels.long()[:, None]).double()
    empty = (size == 0).double()
    return SetQuality(len(sets), float(covered.mean()), float(size.mean()), float(empty.mean()))
