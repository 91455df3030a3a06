"""What a student is trained on: Algorithm 1, and the same network without teachers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyphony import losses
from polyphony.ensembles import DeepEnsemble, Student
from polyphony.perturb import ODS, Perturbation


@dataclass(frozen=True)
class CrossEntropy:
    """Every member on the labels alone: how teachers, and students from scratch, are trained."""

    def __call__(self, student: Student, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
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

    def __call__(self, student: Student, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
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
