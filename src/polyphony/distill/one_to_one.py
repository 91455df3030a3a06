"""Algorithm 1: member j learns from teacher j."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyphony._util.settings import Share, Temperature, check
from polyphony.distill import losses
from polyphony.distill.labels import accuracy, labelled_share
from polyphony.distill.perturb import ODS, Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble, as_seen, known_to
from polyphony.training.graphs import Drawn, TwoPart

Passes = Literal["one", "two"]  # of the student in a step: labels on perturbed inputs too, or on clean ones


@dataclass(frozen=True)
class Distill(TwoPart):
    """(1 − α) CE on clean inputs + α KD on perturbed inputs, member j from teacher j (Algorithm 1).

    With one pass the labels' loss is taken on the perturbed inputs too, at half of the student's cost. So are
    LatentBE students distilled (Nam et al., ICML 2022), with the α = 1 of their code, where CE is only
    reported; a perturbation that changes what an image shows, such as Mixup, is a reason for it as well.

    With `unlabelled`, images whose label is −1 have no CE; its mean is over the others.
    """

    teachers: DeepEnsemble
    alpha: float = 0.9
    temperature: float = 4.0
    perturb: Perturbation = ODS()
    passes: Passes = "two"
    unlabelled: bool = False

    def __post_init__(self) -> None:
        check(Share, alpha=self.alpha)
        check(Temperature, temperature=self.temperature)
        check(Passes, passes=self.passes)

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        seen = student.assign(len(x), rng, x.device)  # [m rows]: which example each member sees
        x_tilde = self.perturb(x, y, self.teachers, student, self.temperature, rng)
        return seen, x_tilde, *labelled_share(y, self.unlabelled)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        seen, x_tilde, *labelled = drawn
        clean, perturbed = answers(student, x, x_tilde, seen, self.passes)
        labels = as_seen(y, seen)
        ce, kd = losses.cross_entropy(clean, labels, *labelled), self.imitation(perturbed, x_tilde, seen)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(clean, labels, *labelled)}

    def imitation(self, logits: Tensor, x: Tensor, seen: Tensor) -> Tensor:
        """How far members are from their teachers on what they see. [m rows k], [b c h w], [m rows] → []"""
        return losses.distillation(logits, taught(self.teachers, x, seen), self.temperature)


def answers(
    student: Ensemble, x: Tensor, x_tilde: Tensor, seen: Tensor, passes: Passes
) -> tuple[Tensor, Tensor]:
    """The student's logits for the labels' loss and for the teachers', in as few passes as will do.

    2 × [b c h w], [m rows] → 2 × [m rows k]
    """
    labelled = x_tilde if passes == "one" else x
    logits = student(as_seen(labelled, seen))
    return logits, logits if x_tilde is labelled else student(as_seen(x_tilde, seen))


@torch.no_grad()
def taught(teachers: DeepEnsemble, x: Tensor, seen: Tensor) -> Tensor:
    """Teacher j's logits on what member j sees; each teacher is asked once for each example. [m rows k]"""
    targets = known_to(seen, teachers(x.expand(len(seen), *x.shape)), dim=1)
    return targets.gather(1, seen[..., None].expand(-1, -1, targets.shape[-1]))
