"""Labels and teachers both on perturbed inputs: how LatentBE students are distilled."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyphony import losses
from polyphony.distill.labels import accuracy
from polyphony.distill.one_to_one import taught
from polyphony.ensembles import DeepEnsemble, Ensemble, as_seen
from polyphony.perturb import ODS, Perturbation


@dataclass(frozen=True)
class DistillPerturbed:
    """(1 − α) CE + α KD, both on perturbed inputs, member j from teacher j: one student pass.

    The loss of Nam et al. (ICML 2022), with the weights and the α = 1 of their code: what is learnt are the
    teachers' answers alone, and CE is only reported. A perturbation that changes what an image shows, such as
    Mixup, leaves the labels as they are, which is another reason for α = 1.
    """

    teachers: DeepEnsemble
    alpha: float = 1.0
    temperature: float = 4.0
    perturb: Perturbation = field(default_factory=ODS)

    def __call__(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        seen = student.assign(len(x), rng)
        x_tilde = self.perturb(x, y, self.teachers, self.temperature, rng)
        targets = taught(self.teachers, x_tilde, seen)
        logits, labels = student(as_seen(x_tilde, seen)), as_seen(y, seen)
        ce = losses.cross_entropy(logits, labels)
        kd = losses.distillation(logits, targets, self.temperature)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(logits, labels)}
