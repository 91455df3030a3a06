"""Calibration: errors, reliability diagrams, and scores by group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import bin_sums, edges, in_order
from polyphony.metrics.probabilities import check
from polyphony.metrics.quality import is_correct


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: bin edges [b + 1]; count, mean confidence and accuracy [b], NaN where empty."""

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def confidence(log_probs: Tensor) -> Tensor:
    """Probability of the most probable class. [… k] → […]"""
    return log_probs.double().amax(-1).exp()


def ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The paper's ECE, Σ_l |B_l|/N · |acc(B_l) − conf(B_l)|, over equal bins (low, high] of confidence."""
    confidences, correct = confidence(log_probs), is_correct(log_probs, labels)
    _, expected, actual = bin_sums(confidences, bins, confidences, correct)
    return float((expected - actual).abs().sum() / len(correct))


def adaptive_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """ECE over bins with equal numbers of examples, sorted by confidence (Nixon et al. 2019).

    Bin l starts at example ⌊l·n/bins⌋. Examples with equal confidence share their mean outcome.
    """
    confidences, correct = in_order(confidence(log_probs), is_correct(log_probs, labels))
    starts = torch.arange(1, bins) * len(correct) // bins
    gaps = [part.sum().abs() for part in (confidences - correct).tensor_split(starts)]
    return float(torch.stack(gaps).sum() / len(correct))


def class_wise_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean over classes k of the ECE of p_k as the probability of label k (Kull et al. 2019), equal bins."""
    log_probs, labels = check(log_probs, labels)
    gaps = []
    for label, probs in enumerate(log_probs.exp().T):
        _, expected, actual = bin_sums(probs, bins, probs, (labels == label).double())
        gaps.append((expected - actual).abs().sum())
    return float(torch.stack(gaps).mean() / len(labels))


@dataclass(frozen=True)
class GroupScore:
    """Scores of predictions on one group of images."""

    n: int
    acc: float
    ece: float
    confidence: float
    """Mean over the group's images."""
    confusion: tuple[int, int] | None
    """The most frequent error as (label, prediction); of several, the first. None if there are no errors."""
    confused: int
    """How often this error occurs."""


def group_scores(log_probs: Tensor, labels: Tensor, groups: Tensor) -> dict[int, GroupScore]:
    """Scores by group. `groups` has the group of each image, for example its label. [n k], [n], [n]"""
    log_probs, labels = check(log_probs, labels)
    if groups.shape != labels.shape:
        raise ValueError(f"{len(groups)} groups do not fit {len(labels)} images.")
    rows = {int(group): groups == group for group in groups.unique()}
    return {group: _group_score(log_probs[row], labels[row]) for group, row in rows.items()}


def _group_score(log_probs: Tensor, labels: Tensor) -> GroupScore:
    correct, classes = is_correct(log_probs, labels), log_probs.shape[1]
    pairs = (labels * classes + log_probs.argmax(-1))[correct == 0]
    counts = pairs.bincount(minlength=1)
    confused = int(counts.max())
    return GroupScore(
        n=len(labels),
        acc=float(correct.mean()),
        ece=ece(log_probs, labels),
        confidence=float(confidence(log_probs).mean()),
        confusion=divmod(int(counts.argmax()), classes) if confused else None,
        confused=confused,
    )


def reliability(log_probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """The reliability diagram. The mean gap of its bins, weighted by their counts, is `ece`."""
    confidences, correct = confidence(log_probs), is_correct(log_probs, labels)
    count, expected, actual = bin_sums(confidences, bins, confidences, correct)
    return Reliability(edges(bins), count, expected / count, actual / count)
