"""What a student is trained on: Algorithm 1, and the same network without teachers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyphony import losses, metrics
from polyphony.data import Splits
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.perturb import ODS, Perturbation
from polyphony.predictions import predict

STEP_SIZES = (1e-4, 0.5)  # within which a step size is matched
MATCH_IMAGES = 1000
MATCH_STEPS = 12


@dataclass(frozen=True)
class CrossEntropy:
    """Every member on the labels alone: how teachers, and students from scratch, are trained."""

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        seen = student.assign(len(x), rng).to(x.device)
        logits = student(x[seen])
        ce = losses.cross_entropy(logits, y[seen])
        return {"loss": ce, "acc": accuracy(logits, y[seen])}


@dataclass(frozen=True)
class Distill:
    """(1 − α) CE on clean inputs + α KD on perturbed inputs, member j from teacher j (Algorithm 1)."""

    teachers: DeepEnsemble
    alpha: float = 0.9
    temperature: float = 4.0
    perturb: Perturbation = field(default_factory=ODS)

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        seen = student.assign(len(x), rng).to(x.device)  # [m b]: which example each member sees
        x_tilde = self.perturb(x, y, self.teachers, self.temperature, rng)
        with torch.no_grad():
            targets = self.teachers(x_tilde[seen])
        clean = student(x[seen])
        perturbed = clean if x_tilde is x else student(x_tilde[seen])
        ce = losses.cross_entropy(clean, y[seen])
        kd = losses.distillation(perturbed, targets, self.temperature)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(clean, y[seen])}


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of rows whose largest logit is the label's, over members and examples. [m b k], [m b] → []"""
    return (logits.detach().argmax(-1) == labels).float().mean()


def match_step_size(
    make: Callable[[float], Perturbation],
    teachers: DeepEnsemble,
    splits: Splits,
    temperature: float,
    rng: torch.Generator,
    share: float = 1.0,
    device: torch.device | str = "cpu",
) -> float:
    """The step size at which the teachers disagree on perturbed training images as on held-out ones.

    Precisely: at which their mean-KLD on perturbed training images is `share` times that on validation
    images, found by bisection of log η on at most 1,000 images of each, with the same draws at every step.
    Where no step within `STEP_SIZES` gets there, the nearer end of that range.
    """
    goal = share * metrics.mean_kld(predict(teachers, splits.valid.some(MATCH_IMAGES), device=device).logits)
    draws = rng.get_state()

    def disagreement(step_size: float) -> float:
        rng.set_state(draws)
        perturb = make(step_size)
        seen = predict(
            teachers,
            splits.train.some(MATCH_IMAGES),
            device=device,
            before=lambda x, y: perturb(x, y, teachers, temperature, rng),
        )
        return metrics.mean_kld(seen.logits)

    low, high = (math.log(size) for size in STEP_SIZES)
    for _ in range(MATCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if disagreement(math.exp(middle)) > goal else (middle, high)
    return math.exp((low + high) / 2)
