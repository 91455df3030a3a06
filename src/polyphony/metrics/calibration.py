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
    sure, correct = confidence(log_probs), is_correct(log_probs, labels)
    _, promised, kept = bin_sums(sure, bins, sure, correct)
    return float((promised - kept).abs().sum() / len(sure))


def adaptive_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """ECE over bins of equally many examples in the order of confidence (Nixon et al. 2019).

    Bin l holds the examples from ⌊l·n/bins⌋ on; equal confidences share their mean outcome.
    """
    sure, outcome = in_order(confidence(log_probs), is_correct(log_probs, labels))
    starts = torch.arange(1, bins) * len(sure) // bins
    gaps = [part.sum().abs() for part in (sure - outcome).tensor_split(starts)]
    return float(torch.stack(gaps).sum() / len(sure))


def class_wise_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean over classes k of the ECE of p_k as the probability of label k (Kull et al. 2019), equal bins."""
    log_probs, labels = check(log_probs, labels)
    gaps = []
    for label, each in enumerate(log_probs.exp().T):
        _, promised, kept = bin_sums(each, bins, each, (labels == label).double())
        gaps.append((promised - kept).abs().sum())
    return float(torch.stack(gaps).mean() / len(labels))


@dataclass(frozen=True)
class GroupScore:
    """How good predictions are on one group of images."""

    n: int
    acc: float
    ece: float
    confidence: float
    """Mean over the group's images."""
    confusion: tuple[int, int] | None
    """The most frequent error as (label, prediction), the first of equals; none without errors."""
    confused: int
    """How often it was made."""


def group_scores(log_probs: Tensor, labels: Tensor, groups: Tensor) -> dict[int, GroupScore]:
    """Scores of each group that has images; groups may be the labels. [n k], [n], [n]"""
    log_probs, labels = check(log_probs, labels)
    if groups.shape != labels.shape:
        raise ValueError(f"{len(groups)} groups do not fit {len(labels)} images.")
    rows = {int(group): groups == group for group in groups.unique()}
    return {group: _group_score(log_probs[row], labels[row]) for group, row in rows.items()}


def _group_score(log_probs: Tensor, labels: Tensor) -> GroupScore:
    correct, classes = is_correct(log_probs, labels), log_probs.shape[1]
    pairs = (labels * classes + log_probs.argmax(-1))[correct == 0]
    counts = pairs.bincount(minlength=1)
    worst, most = divmod(int(counts.argmax()), classes), int(counts.max())
    sure = float(confidence(log_probs).mean())
    error = ece(log_probs, labels)
    return GroupScore(len(labels), float(correct.mean()), error, sure, worst if most else None, most)


def reliability(log_probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """The reliability diagram whose count-weighted mean gap is `ece`."""
    sure, correct = confidence(log_probs), is_correct(log_probs, labels)
    count, promised, kept = bin_sums(sure, bins, sure, correct)
    return Reliability(edges(bins), count, promised / count, kept / count)
