"""Algorithm 1: member j learns from teacher j, or every member from the teachers' mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyphony._util.settings import Share, Temperature, check
from polyphony.compute.parallel import gather
from polyphony.distill import losses
from polyphony.distill.labels import accuracy, labelled_share
from polyphony.distill.perturb import ODS, Clean, Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble, SameRows, Seen, as_seen
from polyphony.training.graphs import Drawn, TwoPart

Passes = Literal["one", "two"]  # of the student in a step: labels on perturbed inputs too, or on clean ones


@dataclass(frozen=True)
class Distill(TwoPart):
    """(1 − α) CE on clean inputs + α KD on perturbed inputs, member j from teacher j (Algorithm 1).

    Call it as `loss(student, x, y, rng)`: it returns "loss", "ce", "kd" and "acc", means over members and
    examples.

    Args:
        teachers: The frozen ensemble, with as many members as the student.
        alpha: α, the share of the distillation loss.
        temperature: τ of the distillation.
        perturb: Where teachers and student are compared.
        passes: Passes of the student in a step. With "one" the labels' loss is on perturbed inputs too, at
            half of the cost; Mixup needs it, and LatentBE students are distilled so (with α = 1).
        unlabelled: Whether images with the label −1 have no labels' loss.

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10) for _ in range(4)])
        >>> loss = Distill(teachers, temperature=1.0, perturb=ODS(step_size=1 / 255))
        >>> student = BatchEnsemble(resnet(8, classes=10), members=4)
        >>> parts = loss(student, torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), torch.Generator())
        >>> sorted(parts)
        ['acc', 'ce', 'kd', 'loss']
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
        seen = student.assign(len(x), rng, x.device)
        x_tilde = self.perturb(x, y, self.teachers, student, self.temperature, rng)
        return seen, x_tilde, *labelled_share(y, self.unlabelled)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        seen, x_tilde, *labelled = drawn
        clean, perturbed = answers(student, x, x_tilde, seen, self.passes)
        labels = as_seen(y, seen)
        ce, kd = losses.cross_entropy(clean, labels, *labelled), self.imitation(perturbed, x_tilde, seen)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        return {"loss": loss, "ce": ce, "kd": kd, "acc": accuracy(clean, labels, *labelled)}

    def imitation(self, logits: Tensor, x: Tensor, seen: Seen) -> Tensor:
        """The distance of members from their teachers on the rows they see. [m rows k], [b c h w] → []"""
        return losses.distillation(logits, taught(self.teachers, x, seen), self.temperature)


@dataclass(frozen=True)
class DistillMean(Distill):
    """(1 − α) CE on clean inputs + α KD from the teachers' mean prediction on perturbed inputs.

    As `Distill`, but all members have one target, so that a `Single` student may have any number of teachers.
    """

    perturb: Perturbation = Clean()

    def imitation(self, logits: Tensor, x: Tensor, seen: Seen) -> Tensor:
        """The distance of members from the teachers' mean. [m rows k], [b c h w] → []"""
        targets = all_teachers(self.teachers, x)
        targets = targets[:, None] if isinstance(seen, SameRows) else gather(targets, dim=1)[:, seen]
        return losses.mean_distillation(logits, targets, self.temperature)


def answers(
    student: Ensemble, x: Tensor, x_tilde: Tensor, seen: Seen, passes: Passes
) -> tuple[Tensor, Tensor]:
    """The student's logits for the labels' loss and for the distillation loss, in as few passes as possible.

    2 × [b c h w] → 2 × [m rows k]
    """
    labelled = x_tilde if passes == "one" else x
    logits = student(as_seen(labelled, seen))
    return logits, logits if x_tilde is labelled else student(as_seen(x_tilde, seen))


@torch.no_grad()
def taught(teachers: DeepEnsemble, x: Tensor, seen: Seen) -> Tensor:
    """Teacher j's logits on the rows that member j sees; it runs once for each example. [m rows k]"""
    members = seen.members if isinstance(seen, SameRows) else len(seen)
    targets = teachers(x.expand(members, *x.shape))
    if isinstance(seen, SameRows):
        return targets
    return gather(targets, dim=1).gather(1, seen[..., None].expand(-1, -1, targets.shape[-1]))


def all_teachers(teachers: DeepEnsemble, x: Tensor) -> Tensor:
    """Every teacher's logits on the same inputs. [b c h w] → [M b k]"""
    with torch.no_grad():
        return teachers.ask_all(x)
