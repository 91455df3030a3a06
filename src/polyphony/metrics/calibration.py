"""Whether confidences are frequencies: the expected calibration error, and reliability diagrams."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyphony.metrics.bins import bin_sums, edges
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


def reliability(log_probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """The reliability diagram whose count-weighted mean gap is `ece`."""
    sure, correct = confidence(log_probs), is_correct(log_probs, labels)
    count, promised, kept = bin_sums(sure, bins, sure, correct)
    return Reliability(edges(bins), count, promised / count, kept / count)
