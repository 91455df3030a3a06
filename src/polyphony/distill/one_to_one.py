"""Algorithm 1: member j learns from teacher j. Other losses: the teachers' mean, or labels alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyphony._util.settings import Share, Temperature, check
from polyphony._util.text import SettingError, counted
from polyphony.compute.parallel import gather
from polyphony.distill import losses
from polyphony.distill.perturb import ODS, Clean, Perturbation, mixes_images
from polyphony.ensembles import Assignment, DeepEnsemble, Ensemble, SameRows, member_rows
from polyphony.training.graphs import Draws, TwoPart

Passes = Literal["one", "two"]  # of the student in a step: one for both losses, or one for each


@dataclass(frozen=True)
class CrossEntropy(TwoPart):
    """Mean cross-entropy of all members: the loss of teachers, and of students without teachers.

    Examples:
        >>> model, rng = Single(resnet(8, classes=10)), torch.Generator()
        >>> sorted(CrossEntropy()(model, torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), rng))
        ['acc', 'loss']
    """

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Draws:
        return (student.assign(len(x), rng, x.device),)

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        (assignment,) = draws
        logits, labels = student(member_rows(x, assignment)), member_rows(y, assignment)
        return {"loss": losses.cross_entropy(logits, labels), "acc": losses.accuracy(logits, labels)}


@dataclass(frozen=True)
class Distill(TwoPart):
    """(1 − α) CE on clean inputs + α KD on perturbed inputs, member j from teacher j (Algorithm 1).

    `loss(student, x, y, rng)` returns "loss", "ce", "kd" and "acc": means over members and examples.

    Args:
        teachers: The frozen ensemble, with as many members as the student.
        alpha: α, the weight of the distillation loss.
        temperature: τ of the distillation loss.
        perturb: Makes the perturbed inputs x̃, on which the student imitates its teachers.
        passes: Passes of the student in a step. "two": the cross-entropy is on clean inputs. "one": it is on
            the perturbed inputs too, which saves a pass. Recipes train LatentBE students with "one". A
            perturbation that mixes images needs "two" (or α = 1), because it does not mix labels.
        unlabelled: Whether the batch may have unlabelled images (label −1). The cross-entropy ignores them.

    Examples:
        >>> teachers = DeepEnsemble([resnet(8, classes=10) for _ in range(4)])
        >>> loss = Distill(teachers, temperature=1.0, perturb=ODS(step_size=1 / 255))
        >>> student = BatchEnsemble(resnet(8, classes=10), members=4)
        >>> terms = loss(student, torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), torch.Generator())
        >>> sorted(terms)
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
        if not callable(self.perturb):
            raise SettingError(f"perturb must be a perturbation such as ODS(), not {self.perturb!r}")
        if self.passes == "one" and self.alpha < 1 and mixes_images(self.perturb):
            raise SettingError('passes must be "two" with mixed images: their labels are not mixed')

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Draws:
        assignment = student.assign(len(x), rng, x.device)
        x_tilde = self.perturb(x, y, self.teachers, student, self.temperature, rng)
        return assignment, x_tilde, losses.labelled_share(y, self.unlabelled)

    def compute(self, student: Ensemble, x: Tensor, y: Tensor, draws: Draws) -> dict[str, Tensor]:
        assignment, x_tilde, labelled = draws
        x = x_tilde if self.passes == "one" else x  # inputs of the cross-entropy
        labels = member_rows(y, assignment)
        clean = student(member_rows(x, assignment))
        perturbed = clean if x_tilde is x else student(member_rows(x_tilde, assignment))
        ce = losses.cross_entropy(clean, labels, labelled)
        kd = self.imitation(perturbed, x_tilde, assignment)
        loss = (1 - self.alpha) * ce + self.alpha * kd
        acc = losses.accuracy(clean, labels, labelled)
        return {"loss": loss, "ce": ce, "kd": kd, "acc": acc}

    def imitation(self, logits: Tensor, x: Tensor, assignment: Assignment) -> Tensor:
        """The distillation loss: `logits` are the student's on its rows of x. [m rows k], [b c h w] → []"""
        targets = own_teacher_logits(self.teachers, x, assignment)
        return losses.distillation(logits, targets, self.temperature)


@dataclass(frozen=True)
class DistillMean(Distill):
    """(1 − α) CE on clean inputs + α KD from the teachers' mean prediction on perturbed inputs.

    It has the arguments of `Distill`. All members have the same target, so a `Single` student can learn from
    any number of teachers.
    """

    perturb: Perturbation = Clean()

    def imitation(self, logits: Tensor, x: Tensor, assignment: Assignment) -> Tensor:
        """The distillation loss with the teachers' mean as the target. [m rows k], [b c h w] → []"""
        targets = all_teacher_logits(self.teachers, x)
        if isinstance(assignment, SameRows):
            targets = targets[:, None]
        else:
            targets = gather(targets, dim=1)[:, assignment]
        return losses.mean_distillation(logits, targets, self.temperature)


@torch.no_grad()
def own_teacher_logits(teachers: DeepEnsemble, x: Tensor, assignment: Assignment) -> Tensor:
    """The logits of teacher j on the rows of member j. [b c h w] → [m rows k]

    Teachers run once on each image, also if a member gets an image several times.
    """
    members = assignment.members if isinstance(assignment, SameRows) else len(assignment)
    if members != teachers.members:
        raise SettingError(
            f"the student has {counted(members, 'member')},"
            f" the ensemble {counted(teachers.members, 'teacher')}"
        )
    logits = teachers(x.expand(members, *x.shape))
    if isinstance(assignment, SameRows):
        return logits
    logits = gather(logits, dim=1)
    return logits.gather(1, assignment[..., None].expand(-1, -1, logits.shape[-1]))


@torch.no_grad()
def all_teacher_logits(teachers: DeepEnsemble, x: Tensor) -> Tensor:
    """The logits of every teacher on the same images. [b c h w] → [M b k]"""
    return teachers.ask_all(x)
