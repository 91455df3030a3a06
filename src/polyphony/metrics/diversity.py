"""How much members differ: mean-KLD, disagreement, and the paper's diversity plot."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import BinSums, bin_index, edges
from polyphony.metrics.calibration import confidence
from polyphony.metrics.probabilities import member_log_probs


@dataclass(frozen=True)
class DiversityBins:
    """A diversity plot: bin edges of the minimum confidence [b + 1]; count and mean KLD [b], NaN if empty."""

    edges: Tensor
    count: Tensor
    kld: Tensor


def pairwise_kld(log_probs: Tensor) -> Tensor:
    """Mean over ordered pairs i ≠ j of KL(p_j ‖ p_i), per example, in nats; 0 for one member. [m n k] → [n]

    Summed over pairs, KL(p_j ‖ p_i) + KL(p_i ‖ p_j) = Σ_k (p_j − p_i)(log p_j − log p_i) is M times the
    covariance of p and log p over members, which needs no pairs and does not cancel for close members.
    """
    members = len(log_probs)
    if members == 1:
        return log_probs.new_zeros(log_probs.shape[1])
    absent = log_probs.isneginf()
    finite = log_probs.masked_fill(absent.any(0), 0.0)
    probs = finite.exp()
    covariance = ((probs - probs.mean(0)) * (finite - finite.mean(0))).sum((0, 2))
    # A class that one member excludes and another does not makes their divergence infinite.
    infinite = (absent.any(0) & ~absent.all(0)).any(-1)
    return (covariance.clamp_min(0.0) / (members - 1)).masked_fill(infinite, math.inf)


def mean_kld(logits: Tensor) -> float:
    """The paper's mean-KLD: `pairwise_kld` averaged over examples. [m n k] → scalar, in nats

    Equals the mean over the diversity plot's bins, weighted by their counts, however many bins there are.
    """
    return float(pairwise_kld(member_log_probs(logits)).mean())


def diversity_bins(logits: Tensor, bins: int = 15) -> DiversityBins:
    """The diversity plot: examples in equal bins (low, high] of the least confident member's confidence."""
    log_probs = member_log_probs(logits)
    return diversity_of(diversity_sums(minimum_confidence(log_probs), pairwise_kld(log_probs), bins))


def minimum_confidence(log_probs: Tensor) -> Tensor:
    """Confidence of the least confident member. [m n k] → [n]"""
    return confidence(log_probs).amin(0)


def diversity_sums(minimum: Tensor, kld: Tensor, bins: int) -> BinSums:
    """Count, sum of minimum confidences and sum of KLDs in each bin. [n], [n] → [bins] each"""
    return BinSums.of(bin_index(minimum, bins), bins, minimum, kld)


def diversity_of(sums: BinSums) -> DiversityBins:
    """The diversity plot of already summed bins."""
    return DiversityBins(edges(len(sums.count)), sums.count, sums.second / sums.count)


def pairwise_disagreement(log_probs: Tensor) -> Tensor:
    """Fraction of pairs of members that name different classes; 0 for one member. [m n k] → [n]"""
    members, _, classes = log_probs.shape
    if members == 1:
        return log_probs.new_zeros(log_probs.shape[1])
    votes = torch.nn.functional.one_hot(log_probs.argmax(-1), classes).sum(0)
    agreeing = (votes * (votes - 1)).sum(-1)
    return 1 - agreeing.double() / (members * (members - 1))


def disagreement(logits: Tensor) -> float:
    """Mean over examples of the fraction of pairs of members that name different classes. [m n k] → scalar"""
    return float(pairwise_disagreement(member_log_probs(logits)).mean())
