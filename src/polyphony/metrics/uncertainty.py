"""How unsure a prediction is, and why: entropies, mutual information, doubt.

For members p_j with mean p̄: the **entropy of the mean** H(p̄) is all uncertainty (`predictive_entropy`), the
**mean of the entropies** (1/M) Σ H(p_j) the part members share (`member_entropy`), and their difference, the
**mutual information** of label and member, the part that is disagreement. All in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyphony.metrics.calibration import confidence
from polyphony.metrics.probabilities import mean_log_probs, member_log_probs
from polyphony.metrics.temperature import temper


@dataclass(frozen=True)
class Uncertainties:
    """Three numbers per example, each larger where the ensemble is less sure. All [n], none below 0."""

    entropy: Tensor
    """Of the ensemble's prediction: the entropy of the mean."""
    mutual_information: Tensor
    """Entropy of the mean minus mean of the entropies, of the members as they are."""
    doubt: Tensor
    """1 − confidence of the ensemble's prediction: ranks as negative confidence does."""


def uncertainties(logits: Tensor, temperature: float = 1.0) -> Uncertainties:
    """Each example's uncertainties; the temperature scales the ensemble's prediction, not its members.

    [m n k] → [n] each
    """
    members = member_log_probs(logits)
    mean = mean_log_probs(members)
    scaled = temper(mean, temperature)
    return Uncertainties(entropy(scaled), information(members, mean), 1 - confidence(scaled))


def entropy(log_probs: Tensor) -> Tensor:
    """−Σ_k p_k log p_k, in nats, with 0 log 0 = 0. [… k] → […]"""
    log_probs = log_probs.double()
    return 0.0 - (log_probs.exp() * _finite(log_probs)).sum(-1)  # 0 − 0 is 0; −(0) would print as −0


def information(log_probs: Tensor, mean: Tensor) -> Tensor:
    """(1/M) Σ_j KL(p_j ‖ p̄) = H(p̄) − (1/M) Σ_j H(p_j), per example. [m n k], [n k] → [n]"""
    # The difference of two entropies would cancel where members nearly agree; ratios do not.
    ratio = _finite(log_probs) - _finite(mean)
    return (log_probs.exp() * ratio).sum(-1).mean(0).clamp_min(0.0)


def predictive_entropy(logits: Tensor) -> float:
    """Mean over examples of the entropy of the mean. [m n k] → scalar"""
    return float(entropy(mean_log_probs(member_log_probs(logits))).mean())


def member_entropy(logits: Tensor) -> float:
    """Mean over examples of the mean of the members' entropies. [m n k] → scalar"""
    return float(entropy(member_log_probs(logits)).mean())


def mutual_information(logits: Tensor) -> float:
    """Mean over examples of entropy of the mean minus mean of the entropies, ≤ ln M. [m n k] → scalar"""
    log_probs = member_log_probs(logits)
    return float(information(log_probs, mean_log_probs(log_probs)).mean())


def _finite(log_probs: Tensor) -> Tensor:
    # Only ever multiplied by the probability 0 that belongs to it, where −inf would make NaN.
    return log_probs.clamp_min(-1e300)
