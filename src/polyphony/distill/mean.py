"""What one would otherwise do: every member, or a single network, learns from the averaged teachers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from polyphony import losses
from polyphony.distill.labels import accuracy
from polyphony.distill.one_to_one import Passes, answers
from polyphony.ensembles import DeepEnsemble, Ensemble, as_seen, known_to
from polyphony.graphs import Drawn, TwoPart
from polyphony.limits import one_of, positive, shares
from polyphony.perturb import Clean, Perturbation


@dataclass(frozen=True)
class DistillMean(TwoPart):
    """(1 − α) CE on clean inputs + α KD from the teachers' mean prediction on perturbed inputs.

    As `Distill`, but all members have one target, so that a `Single` student may have any number of teachers.
    """

    teachers: DeepEnsemble
    alpha: float = 0.9
    temperature: float = 4.0
    perturb: Perturbation = field(default_factory=Clean)
    passes: Passes = "two"

    def __post_init__(self) -> None:
        shares(alpha=self.alpha)
        positive(temperature=self.temperature)
        one_of(get_args(Passes), passes=self.passes)

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        seen = student.assign(len(x), rng, x.device)  # [m rows]: which example each member sees
        return seen, self.perturb(x, y, self.teachers, self.temperature, rng)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        seen, x_tilde = drawn
        targets = known_to(seen, all_teachers(self.teachers, x_tilde), dim=1)[:, seen]
        clean, perturbed = answers(student, x, x_tilde, seen, self.passes)
        labels = as_seen(y, seen)
        ce = losses.cross_entropy(clean, labels)
        kd = losses.mean_distillation(perturbed, targets, self.temperature)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(clean, labels)}


def all_teachers(teachers: DeepEnsemble, x: Tensor) -> Tensor:
    """Every teacher's logits on the same inputs. [b c h w] → [M b k]"""
    with torch.no_grad():
        return teachers(x.expand(teachers.members, *x.shape))
