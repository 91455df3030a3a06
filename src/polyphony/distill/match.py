"""Choosing the step size by the teachers' disagreement on validation images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from polyphony.data import Splits
from polyphony.distill.perturb import Perturbation, applied
from polyphony.ensembles import DeepEnsemble
from polyphony.training.predict import predict

STEP_SIZES = (1e-4, 0.5)  # range of the search
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

    At the result, the teachers' mean-KLD on perturbed training images is `share` times the mean-KLD on
    validation images. The search is a bisection of log η on at most 1,000 images of each split, with the same
    random draws at each step. If no step size within `STEP_SIZES` reaches the goal, the result is close to
    the nearer end of that range. Teachers that have not memorised their training images disagree on them
    without any step as much as on validation images, so that no step matches: see `is_at_end`.

    Args:
        make: Returns the perturbation with a step size.
        teachers: The deep ensemble.
        splits: Training and validation images.
        temperature: τ of the distillation.
        rng: Source of the random draws.
        share: Share of the disagreement on validation images to reach.

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10, channels=1, width=4) for _ in range(2)])
        >>> digits, rng = load("digits", Options(per_class=5, valid=50, test=50)), torch.Generator()
        >>> 0 < match_step_size(lambda step: ODS(step_size=step), teachers, digits, 1.0, rng) < 10
        True
    """
    goal = share * predict(teachers, splits.valid.some(MATCH_IMAGES)).mean_kld()
    draws = rng.get_state()

    def disagreement(step_size: float) -> float:
        rng.set_state(draws)
        before = applied(make(step_size), teachers, None, temperature, rng)
        return predict(teachers, splits.train.some(MATCH_IMAGES), before=before).mean_kld()

    low, high = (math.log(size) for size in STEP_SIZES)
    for _ in range(MATCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if disagreement(math.exp(middle)) > goal else (middle, high)
    return math.exp((low + high) / 2)


def is_at_end(step_size: float) -> bool:
    """Whether a step is at an end of the range of `match_step_size`, so that it matches nothing."""
    low, high = STEP_SIZES
    return step_size < 1.01 * low or step_size > high / 1.01
