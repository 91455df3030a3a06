"""How unsure a prediction is, and why, in nats.

For members p_j with mean p̄: the entropy of the mean H(p̄) is all uncertainty, the mean of the entropies
(1/M) Σ H(p_j) the part members share, and their difference, the mutual information of label and member, the
part that is disagreement.
"""

from __future__ import annotations

from torch import Tensor

from polyphony.metrics.mixture import mean_log_probs


def entropy(log_probs: Tensor) -> Tensor:
    """−Σ_k p_k log p_k, with 0 log 0 = 0. [… k] → […]"""
    log_probs = log_probs.double()
    return 0.0 - (log_probs.exp() * _finite(log_probs)).sum(-1)  # 0 − 0 is 0; −(0) would print as −0


def information(log_probs: Tensor) -> Tensor:
    """Mutual information: (1/M) Σ_j KL(p_j ‖ p̄) = H(p̄) − (1/M) Σ_j H(p_j), at most ln M. [m n k] → [n]"""
    # The difference of two entropies would cancel where members nearly agree; ratios do not.
    ratio = _finite(log_probs) - _finite(mean_log_probs(log_probs))
    return (log_probs.exp() * ratio).sum(-1).mean(0).clamp_min(0.0)


def _finite(log_probs: Tensor) -> Tensor:
    # Only ever multiplied by the probability 0 that belongs to it, where −inf would make NaN.
    return log_probs.clamp_min(-1e300)
