"""Training on the labels alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.distill import losses
from polyphony.ensembles import Ensemble, as_seen
from polyphony.training.graphs import Drawn, TwoPart


@dataclass(frozen=True)
class CrossEntropy(TwoPart):
    """Every member on the labels alone: how teachers, and students from scratch, are trained."""

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        return (student.assign(len(x), rng, x.device),)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        (seen,) = drawn
        logits, labels = student(as_seen(x, seen)), as_seen(y, seen)
        return {"loss": losses.cross_entropy(logits, labels), "acc": accuracy(logits, labels)}


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of rows whose largest logit is the label's, over members and examples. [m b k], [m b] → []"""
    return (logits.detach().argmax(-1) == labels).float().mean()
