"""The step size at which the teachers disagree as they do on held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from polyphony import metrics
from polyphony.data import Splits
from polyphony.distill.perturb import Perturbation, applied
from polyphony.ensembles import DeepEnsemble
from polyphony.training.predict import predict

STEP_SIZES = (1e-4, 0.5)  # within which a step size is matched
MATCH_IMAGES = 1000
MATCH_STEPS = 12


def match_step_size(
    make: Callable[[float], Perturbation],
    teachers: DeepEnsemble,
    splits: Splits,
    temperature: float,
    rng: torch.Generator,
    share: float = 1.0,
) -> float:
    """The step size at which teachers disagree on perturbed training images as much as on validation images.

    It is found by bisection of log η on at most 1,000 images of each split, with the same draws at each step:
    the mean-KLD on perturbed training images is `share` times that on validation images. If no step within
    `STEP_SIZES` gets there, the result is the nearer end of that range.

    Args:
        make: Makes the perturbation of a step size.
        teachers: The deep ensemble.
        splits: Training and validation images.
        temperature: τ of the distillation.
        rng: Source of the draws.
        share: Which share of the disagreement on validation images to reach.

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10, channels=1, width=4) for _ in range(2)])
        >>> digits, rng = load("digits", Options(per_class=5, valid=50, test=50)), torch.Generator()
        >>> 0 < match_step_size(lambda step: ODS(step_size=step), teachers, digits, 1.0, rng) < 10
        True
    """
    goal = share * metrics.mean_kld(predict(teachers, splits.valid.some(MATCH_IMAGES)).logits)
    draws = rng.get_state()

    def disagreement(step_size: float) -> float:
        rng.set_state(draws)
        before = applied(make(step_size), teachers, None, temperature, rng)
        return metrics.mean_kld(predict(teachers, splits.train.some(MATCH_IMAGES), before=before).logits)

    low, high = (math.log(size) for size in STEP_SIZES)
    for _ in range(MATCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if disagreement(math.exp(middle)) > goal else (middle, high)
    return math.exp((low + high) / 2)
