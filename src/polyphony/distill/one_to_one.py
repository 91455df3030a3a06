"""Algorithm 1: member j learns from teacher j."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyphony import losses
from polyphony.distill.labels import accuracy
from polyphony.ensembles import DeepEnsemble, Ensemble, as_seen
from polyphony.perturb import ODS, Perturbation


@dataclass(frozen=True)
class Distill:
    """(1 − α) CE on clean inputs + α KD on perturbed inputs, member j from teacher j (Algorithm 1)."""

    teachers: DeepEnsemble
    alpha: float = 0.9
    temperature: float = 4.0
    perturb: Perturbation = field(default_factory=ODS)

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        seen = student.assign(len(x), rng)  # [m rows]: which example each member sees
        x_tilde = self.perturb(x, y, self.teachers, self.temperature, rng)
        targets = taught(self.teachers, x_tilde, seen)
        clean, labels = student(as_seen(x, seen)), as_seen(y, seen)
        perturbed = clean if x_tilde is x else student(as_seen(x_tilde, seen))
        ce = losses.cross_entropy(clean, labels)
        kd = losses.distillation(perturbed, targets, self.temperature)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(clean, labels)}


@torch.no_grad()
def taught(teachers: DeepEnsemble, x: Tensor, seen: Tensor) -> Tensor:
    """Teacher j's logits on what member j sees; each teacher is asked once for each example. [m rows k]"""
    targets = teachers(x.expand(len(seen), *x.shape))
    return targets.gather(1, seen.to(x.device)[..., None].expand(-1, -1, targets.shape[-1]))
