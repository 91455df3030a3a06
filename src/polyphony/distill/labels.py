"""Cross-entropy on labels, and helpers for batches with unlabelled images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.compute.parallel import gather
from polyphony.distill import losses
from polyphony.ensembles import Ensemble, member_rows
from polyphony.training.graphs import Draws, TwoPart


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
        return {"loss": losses.cross_entropy(logits, labels), "acc": accuracy(logits, labels)}


def accuracy(logits: Tensor, labels: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Share of correct predictions, over members and examples. [m b k], [m b] → []

    `labelled` is the share of examples that have a label: pass it to ignore the others, whose label is −1.
    """
    correct = (logits.detach().argmax(-1) == labels).float().mean()
    return correct if labelled is None else correct / labelled


def labelled_share(y: Tensor, unlabelled: bool) -> tuple[Tensor, ...]:
    """The share of a batch that has a label, or () if there are no unlabelled images. [b] → ([],) or ()

    It counts the rows of all processes: a mean over all rows, divided by it, is the mean over labelled rows.
    """
    return (gather((y >= 0).float()).mean(),) if unlabelled else ()
