"""Distillation of averaged teachers: every member, or a single network, learns their mean prediction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.compute.parallel import gather
from polyphony.distill import losses
from polyphony.distill.one_to_one import Distill
from polyphony.distill.perturb import Clean, Perturbation
from polyphony.ensembles import DeepEnsemble, SameRows, Seen


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


def all_teachers(teachers: DeepEnsemble, x: Tensor) -> Tensor:
    """Every teacher's logits on the same inputs. [b c h w] → [M b k]"""
    with torch.no_grad():
        return teachers(x.expand(teachers.members, *x.shape))
