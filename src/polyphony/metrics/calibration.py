"""Whether confidences are frequencies: ECE, adaptive ECE, classwise ECE, reliability diagrams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import ROUNDING, BinSums, bin_index, edges
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


def confidence_sums(confidence: Tensor, correct: Tensor, bins: int) -> BinSums:
    """Count, sum of confidences and number correct in each confidence bin. [n], [n] → [bins] each"""
    return BinSums.of(bin_index(confidence, bins), bins, confidence, correct)


def calibration_error(sums: BinSums) -> float:
    """Σ_l |B_l|/N · |acc(B_l) − conf(B_l)| from the sums of each bin (the paper's ECE)."""
    return float((sums.first - sums.second).abs().sum() / sums.count.sum())


def ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error over equal bins (low, high]; a confidence of exactly 1 is in the last."""
    correct = is_correct(log_probs, labels)
    return calibration_error(confidence_sums(confidence(log_probs), correct, bins))


def reliability(log_probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """The reliability diagram whose count-weighted mean gap is `ece`."""
    correct = is_correct(log_probs, labels)
    return reliability_of(confidence_sums(confidence(log_probs), correct, bins))


def reliability_of(sums: BinSums) -> Reliability:
    """The diagram of already summed bins."""
    bins = len(sums.count)
    return Reliability(edges(bins), sums.count, sums.first / sums.count, sums.second / sums.count)


def adaptive_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """ECE over bins of equal mass: each holds n / bins examples, in order of confidence.

    Where n does not divide, or equal confidences straddle an edge, examples are shared between neighbouring
    bins in proportion, so that the score does not depend on the examples' order.
    """
    correct = is_correct(log_probs, labels)
    return equal_mass_error(doubt_groups(confidence(log_probs), correct), bins)


def doubt_groups(confidence: Tensor, correct: Tensor) -> BinSums:
    """Examples of equal confidence (to `ROUNDING`), most confident first. [n], [n] → [g] each

    Their counts, sums of doubt (1 − confidence) and numbers of errors.
    """
    doubt = 1 - confidence
    distinct, index = torch.unique((doubt / ROUNDING).round(), return_inverse=True)
    return BinSums.of(index, len(distinct), doubt, 1 - correct)


def equal_mass_error(doubts: BinSums, bins: int) -> float:
    """Adaptive ECE of examples grouped by doubt, ascending: counts, sums of doubt, numbers of errors."""
    some = doubts.count > 0
    count, gap = doubts.count[some], (doubts.second - doubts.first)[some]
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    gaps = torch.cat([count.new_zeros(1), gap.cumsum(0)])
    at = ends[-1] * edges(bins).to(count.device)
    after = torch.searchsorted(ends, at).clamp_min(1)
    share = (at - ends[after - 1]) / count[after - 1]
    gap_at = gaps[after - 1] + share * gap[after - 1]
    return float(gap_at.diff().abs().sum() / ends[-1])


def class_sums(log_probs: Tensor, labels: Tensor, bins: int) -> BinSums:
    """Sums of p_k and of 1[y = k] in each bin of p_k, for each class k. [n k], [n] → [k·bins] each"""
    log_probs, labels = check(log_probs, labels)
    classes = log_probs.shape[1]
    probs = log_probs.exp()
    offset = bins * torch.arange(classes, device=probs.device)
    is_label = torch.zeros_like(probs).scatter_(1, labels[:, None], 1.0)
    index = (bin_index(probs, bins) + offset).flatten()
    return BinSums.of(index, classes * bins, probs.flatten(), is_label.flatten())


def classwise_ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean over classes k of the ECE of the statement "the label is k", which p_k makes of every example."""
    # Each class bins every example, so Σ count = n·K and the common denominator is the mean over classes.
    return calibration_error(class_sums(log_probs, labels, bins))
