"""Prediction sets that contain the true label with a chosen probability (split conformal prediction).

A score says how badly a class fits an image. The threshold for a coverage c is the ⌈(n + 1) c⌉-th smallest
score of the true labels of n calibration images, and a set holds every class whose score is at most that. If
a new image comes from the same distribution, its set holds the true label with probability c or more, for any
network. The guarantee is **marginal**: it holds on average over images, not for each class or each kind of
image.

The temperature is fitted on other validation images than those that give the threshold: `two_parts`.
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
"""Log-probabilities [n k] → the score of every class [n k], larger for a worse fit."""

FITTED = 4  # a quarter of the validation images fits the temperature; the others give the threshold
SPLIT_SEED = 0


def lac(log_probs: Tensor) -> Tensor:
    """−log p_k: the classes above a fixed probability (Sadinle, Lei and Wasserman 2019). [n k] → [n k]

    LAC's 1 − p_k gives the same order and the same sets; the logarithm keeps the digits of small p. These
    sets are the smallest on average. A set may be empty: no class is probable enough.
    """
    return -log_probs.double()


@dataclass(frozen=True)
class APS:
    """The total probability of all more probable classes (Romano et al. 2020). [n k] → [n k]

    It leaves out the paper's random number, so that equal images have equal sets, and a set always holds the
    most probable class. The coverage is then never below the accuracy. A `penalty` for each class after the
    first `free` ones gives smaller sets (RAPS, Angelopoulos et al. 2021; default: none).
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
    """Of the true labels of the calibration images, ascending. [n]"""
    temperature: float
    """Fitted on `fitted` other validation images."""
    fitted: int
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
        """The ⌈(n + 1) · coverage⌉-th smallest score; ∞, for sets of all classes, where n is too small."""
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage must lie between 0 and 1; got {coverage}.")
        place = math.ceil((len(self.scores) + 1) * coverage - ROUNDING)
        return float(self.scores[place - 1]) if place <= len(self.scores) else math.inf

    def sets(self, log_probs: Tensor, coverage: float) -> Tensor:
        """Whether each class is in the image's set; log-probabilities as predicted. [n k] → bool [n k]"""
        return self.score(temper(log_probs, self.temperature)) <= self.threshold(coverage)


def two_parts(count: int) -> tuple[Tensor, Tensor]:
    """Rows of validation images that fit the temperature, and the others, which give the threshold.

    A quarter and the rest of a fixed shuffle, so that both are random samples in any order of the images.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return tuple(part.sort().values for part in order.tensor_split([count // FITTED]))  # type: ignore[return-value]


@dataclass(frozen=True)
class SetQuality:
    """How good sets are on labelled images."""

    n: int
    coverage: float
    """Share of the sets that hold the true label."""
    size: float
    """Mean number of classes in a set."""
    empty: float
    """Share of the sets without any class."""


def set_quality(sets: Tensor, labels: Tensor) -> SetQuality:
    """Coverage and size of sets. bool [n k], [n], not empty"""
    size = sets.sum(-1).double()
    held = sets.gather(1, labels.long()[:, None]).double()
    return SetQuality(len(sets), *(float(each.mean()) for each in (held, size, (size == 0).double())))
