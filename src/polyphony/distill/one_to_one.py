"""Algorithm 1: member j learns from teacher j."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyphony import losses
from polyphony.distill.labels import accuracy
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.perturb import ODS, Perturbation


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
