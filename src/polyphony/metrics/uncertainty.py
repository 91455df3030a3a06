"""Uncertainty of predictions and disagreement of members, in nats and float64.

For members p_j with mean p̄, the entropy of the mean H(p̄) is the total uncertainty. The mean of the entropies
(1/M) Σ H(p_j) is the part that members share. The difference is the mutual information of label and member:
the part that comes from disagreement.

A network with outputs log α [n k] predicts a Dirichlet Dir(α), which acts as infinitely many members. Its
mean is α/α₀ with α₀ = Σ_k α_k: the softmax of log α. The `dirichlet_…` functions are expectations over random
members, in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import bin_sums, edges
from polyphony.metrics.probabilities import mean_log_probs, member_log_probs

_LARGE = 30.0  # above this, the series of five terms is exact in float64


@dataclass(frozen=True)
class DiversityBins:
    """A diversity plot: bin edges of the least confidence [b + 1]; count and mean KLD [b], NaN if empty."""

    edges: Tensor
    count: Tensor
    kld: Tensor


def entropy(log_probs: Tensor) -> Tensor:
    """−Σ_k p_k log p_k, with 0 log 0 = 0. [… k] → […]"""
    log_probs = log_probs.double()
    return 0.0 - (log_probs.exp() * _finite(log_probs)).sum(-1)  # not −(…), which would print −0


def information(log_probs: Tensor) -> Tensor:
    """Mutual information: (1/M) Σ_j KL(p_j ‖ p̄) = H(p̄) − (1/M) Σ_j H(p_j), at most ln M. [m n k] → [n]"""
    # The difference of two entropies would cancel if members nearly agree; log-ratios do not.
    ratio = _finite(log_probs) - _finite(mean_log_probs(log_probs))
    return (log_probs.exp() * ratio).sum(-1).mean(0).clamp_min(0.0)


def pairwise_kld(log_probs: Tensor) -> Tensor:
    """Mean over ordered pairs i ≠ j of KL(p_j ‖ p_i), per example, in nats; 0 for one member. [m n k] → [n]

    The sum over pairs of KL(p_j ‖ p_i) + KL(p_i ‖ p_j) = Σ_k (p_j − p_i)(log p_j − log p_i) is M times the
    sum over members of the products of deviations of p and log p from their means. This needs no loop over
    pairs, and does not cancel for similar members.
    """
    members = len(log_probs)
    if members == 1:
        return log_probs.new_zeros(log_probs.shape[1])
    absent = log_probs.isneginf()
    finite = log_probs.masked_fill(absent.any(0), 0.0)
    probs = finite.exp()
    covariance = ((probs - probs.mean(0)) * (finite - finite.mean(0))).sum((0, 2))
    # If only some members give a class the probability 0, their divergence is infinite.
    infinite = (absent.any(0) & ~absent.all(0)).any(-1)
    return (covariance.clamp_min(0.0) / (members - 1)).masked_fill(infinite, math.inf)


def disagreement(logits: Tensor) -> float:
    """Share of pairs of members that predict different classes; 0 for one member. [m n k] → scalar"""
    members, _, classes = logits.shape
    if members == 1:
        return 0.0
    votes = torch.nn.functional.one_hot(member_log_probs(logits).argmax(-1), classes).sum(0)
    agreeing = (votes * (votes - 1)).sum(-1)
    return float((1 - agreeing.double() / (members * (members - 1))).mean())


def diversity_bins(least_confidence: Tensor, kld: Tensor, bins: int = 15) -> DiversityBins:
    """The diversity plot: mean divergence in bins of the least confidence. [n], [n] → [bins] each"""
    count, total = bin_sums(least_confidence, bins, kld)
    return DiversityBins(edges(bins), count, total / count)


def dirichlet_information(log_concentrations: Tensor) -> Tensor:
    """H(E[π]) − E[H(π)], the mutual information of label and draw. [n k] → [n]

    E[H(π)] = −Σ_k (α_k/α₀) (ψ(α_k + 1) − ψ(α₀ + 1)). Both terms contain the entropy of the mean. Without it,
    the result is Σ_k (α_k/α₀) f(α_k) − f(α₀) with f(a) = ψ(a + 1) − log a, which is about 1/2a for large a:
    no large terms cancel.
    """
    log_alpha = log_concentrations.double()
    log_total = log_alpha.logsumexp(-1, keepdim=True)
    mean = (log_alpha - log_total).exp()
    terms = mean * (_digamma_minus_log(log_alpha) - _digamma_minus_log(log_total))
    return terms.sum(-1).clamp_min(0.0)


def dirichlet_kld(log_concentrations: Tensor) -> Tensor:
    """E[KL(π ‖ π′)] of two independent draws, the mean-KLD of infinite members: (K − 1) / α₀. [n k] → [n]

    E[Σ_k π_k log π_k] − Σ_k E[π_k] E[log π_k] = Σ_k (α_k/α₀) (ψ(α_k + 1) − ψ(α_k) − ψ(α₀ + 1) + ψ(α₀)), and
    ψ(a + 1) − ψ(a) = 1/a.
    """
    log_alpha = log_concentrations.double()
    return (log_alpha.shape[-1] - 1) * (-log_alpha.logsumexp(-1)).exp()


def _digamma_minus_log(log_a: Tensor) -> Tensor:
    """ψ(a + 1) − log a from log a; for large a by a series in 1/a, since the difference would cancel."""
    a = log_a.exp()
    r = (1 / a.clamp_min(_LARGE)).square()
    series = (0.5 * r.sqrt()) - r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r / 240)))
    return torch.where(a < _LARGE, (a.clamp_max(_LARGE) + 1).digamma() - log_a, series)


def _finite(log_probs: Tensor) -> Tensor:
    # −inf is multiplied by its probability 0, which would give NaN.
    return log_probs.clamp_min(-1e300)
