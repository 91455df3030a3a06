"""How much members differ: the divergence of pairs, disagreement, and the paper's diversity plot."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import bin_sums, edges
from polyphony.metrics.probabilities import member_log_probs


@dataclass(frozen=True)
class DiversityBins:
    """A diversity plot: bin edges of the least confidence [b + 1]; count and mean KLD [b], NaN if empty."""

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
    """`pairwise_kld` averaged over examples. [m n k] → scalar, in nats"""
    return float(pairwise_kld(member_log_probs(logits)).mean())


def disagreement(logits: Tensor) -> float:
    """Fraction of examples and pairs of members that name different classes; 0 for one. [m n k] → scalar"""
    members, _, classes = logits.shape
    if members == 1:
        return 0.0
    votes = torch.nn.functional.one_hot(member_log_probs(logits).argmax(-1), classes).sum(0)
    agreeing = (votes * (votes - 1)).sum(-1)
    return float((1 - agreeing.double() / (members * (members - 1))).mean())


def diversity_bins(least_confidence: Tensor, kld: Tensor, bins: int = 15) -> DiversityBins:
    """The diversity plot of examples' least confidences and divergences. [n], [n] → [bins] each"""
    count, total = bin_sums(least_confidence, bins, kld)
    return DiversityBins(edges(bins), count, total / count)
