"""Training on labels alone, and the labels' loss with unlabelled images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.compute.parallel import gather
from polyphony.distill import losses
from polyphony.ensembles import Ensemble, as_seen
from polyphony.training.graphs import Drawn, TwoPart


@dataclass(frozen=True)
class CrossEntropy(TwoPart):
    """Every member on the labels alone: the loss of teachers, and of students from scratch.

    Examples:
        >>> model, rng = Single(resnet(8, classes=10)), torch.Generator()
        >>> sorted(CrossEntropy()(model, torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), rng))
        ['acc', 'loss']
    """

    def draw(self, student: Ensemble, x: Tensor, y: Tensor, rng: torch.Generator) -> Drawn:
        return (student.assign(len(x), rng, x.device),)

    def given(self, student: Ensemble, x: Tensor, y: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        (seen,) = drawn
        logits, labels = student(as_seen(x, seen)), as_seen(y, seen)
        return {"loss": losses.cross_entropy(logits, labels), "acc": accuracy(logits, labels)}


def accuracy(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Share of rows whose largest logit is the label's, over members and examples. [m b k], [m b] → []

    With `labelled`, the share of examples that have a label, it is the share of those.
    """
    correct = (logits.detach().argmax(-1) == labels).float().mean()
    return correct if labelled is None else correct / labelled


def labelled_share(y: Tensor, unlabelled: bool) -> tuple[Tensor, ...]:
    """The share of a batch that has a label, if there may be unlabelled images. [b] → ([],) or ()

    It is counted over the rows of all processes, so that a sum divided by it is the mean over labelled rows.
    """
    return (gather((y >= 0).float()).mean(),) if unlabelled else ()
