"""One pass over logits: a row of numbers per example, of which almost every score is a mean.

Logits are worked through in blocks, so the float64 work takes the memory of a block; the columns themselves
take about a hundred bytes an example. Where even that is too much, `streaming` keeps sums alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from polyphony.metrics.bins import BinSums
from polyphony.metrics.calibration import (
    calibration_error,
    class_sums,
    confidence,
    confidence_sums,
    doubt_groups,
    equal_mass_error,
)
from polyphony.metrics.diversity import minimum_confidence, pairwise_disagreement, pairwise_kld
from polyphony.metrics.probabilities import check, mean_log_probs, member_log_probs
from polyphony.metrics.quality import is_correct, is_in_top, label_nll, squared_error
from polyphony.metrics.selective import aurc_of
from polyphony.metrics.temperature import temper
from polyphony.metrics.uncertainty import entropy, information

BLOCK_ELEMENTS = 2**18
"""How many logits are worked on at once, 2 MB in float64: 2**17 to 2**20 were the fastest measured."""


@dataclass(frozen=True)
class Columns:
    """Numbers of each example. The first six are of the ensemble's prediction at its temperature; those from
    `mutual_information` on are of the members as they are, and no temperature changes them. All [n].
    """

    accuracy: Tensor
    top5: Tensor
    nll: Tensor
    brier: Tensor
    confidence: Tensor
    entropy: Tensor
    mutual_information: Tensor
    kld: Tensor
    disagreement: Tensor
    member_accuracy: Tensor
    member_nll: Tensor
    member_entropy: Tensor
    minimum_confidence: Tensor


@dataclass(frozen=True)
class Block:
    """The columns of a block, and the class-by-class sums that no column can give."""

    columns: Columns
    classes: BinSums


def in_blocks(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of consecutive examples, about `BLOCK_ELEMENTS` logits each. [m n k], [n] → ([m b k], [b])…"""
    if logits.ndim != 3 or labels.shape != logits.shape[1:2]:
        raise ValueError(f"{list(labels.shape)} labels do not fit logits {list(logits.shape)} [members n k].")
    members, examples, classes = logits.shape
    size = max(1, BLOCK_ELEMENTS // max(1, members * classes))
    for start in range(0, examples, size):
        yield logits[:, start : start + size], labels[start : start + size]


def block(logits: Tensor, labels: Tensor, temperature: float = 1.0, bins: int = 15) -> Block:
    """Columns of one block, computed at once. [m b k], [b]"""
    members = member_log_probs(logits)
    mean = mean_log_probs(members)
    prediction, labels = check(temper(mean, temperature), labels)
    each = Columns(
        accuracy=is_correct(prediction, labels),
        top5=is_in_top(prediction, labels, 5),
        nll=label_nll(prediction, labels),
        brier=squared_error(prediction, labels),
        confidence=confidence(prediction),
        entropy=entropy(prediction),
        mutual_information=information(members, mean),
        kld=pairwise_kld(members),
        disagreement=pairwise_disagreement(members),
        member_accuracy=(members.argmax(-1) == labels).double().mean(0),
        member_nll=-members[:, torch.arange(len(labels)), labels].mean(0),
        member_entropy=entropy(members).mean(0),
        minimum_confidence=minimum_confidence(members),
    )
    return Block(each, class_sums(prediction, labels, bins))


def columns(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Columns:
    """The columns of all examples, block by block. [m n k], [n]"""
    blocks = [block(*part, temperature).columns for part in in_blocks(logits, labels)]
    return Columns(*(torch.cat([getattr(b, f.name) for b in blocks]) for f in fields(Columns)))


def means(each: Columns) -> dict[str, float]:
    """The mean of every column, by name."""
    return {f.name: float(getattr(each, f.name).mean()) for f in fields(Columns)}


def scores(logits: Tensor, labels: Tensor, temperature: float = 1.0, bins: int = 15) -> dict[str, float]:
    """Every score that predictions on one labelled split have, exactly. [m n k], [n]

    The means of all `Columns`, and `ece`, `adaptive_ece`, `classwise_ece`, `aurc`. The temperature is one
    fitted on validation, or 1 for the standard scores.
    """
    blocks = [block(*part, temperature, bins) for part in in_blocks(logits, labels)]
    each = Columns(*(torch.cat([getattr(b.columns, f.name) for b in blocks]) for f in fields(Columns)))
    doubts = doubt_groups(each.confidence, each.accuracy)
    classes = sum((b.classes for b in blocks[1:]), start=blocks[0].classes)
    return means(each) | {
        "ece": calibration_error(confidence_sums(each.confidence, each.accuracy, bins)),
        "adaptive_ece": equal_mass_error(doubts, bins),
        "classwise_ece": calibration_error(classes),
        "aurc": aurc_of(doubts),
    }
