"""The spread of predictions under a Dirichlet, in closed form: an ensemble of infinitely many members.

A network that gives log concentrations log α [n k] predicts a distribution of predictions, Dir(α). Its mean
is α/α₀ with α₀ = Σ_k α_k, the softmax of log α, which all scores of quality read. The functions here are what
the mean does not say; each is the expectation over members drawn from Dir(α) of the number that `uncertainty`
and `diversity` have for an ensemble's members. All are in nats and float64, [n k] → [n].
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGE = 30.0  # from which the series of five terms is exact in float64


def dirichlet_information(log_concentrations: Tensor) -> Tensor:
    """H(E[π]) − E[H(π)], the mutual information of label and draw: the uncertainty that is disagreement.

    E[H(π)] = −Σ_k (α_k/α₀) (ψ(α_k + 1) − ψ(α₀ + 1)). Both terms contain the mean's entropy. Without it there
    is left Σ_k (α_k/α₀) f(α_k) − f(α₀) with f(a) = ψ(a + 1) − log a, which is about 1/2a for large a: nothing
    large cancels.
    """
    log_alpha = log_concentrations.double()
    log_total = log_alpha.logsumexp(-1, keepdim=True)
    mean = (log_alpha - log_total).exp()
    each = mean * (_above_log(log_alpha) - _above_log(log_total))
    return each.sum(-1).clamp_min(0.0)


def dirichlet_kld(log_concentrations: Tensor) -> Tensor:
    """E[KL(π ‖ π′)] of two independent draws, the mean-KLD of infinitely many members: (K − 1) / α₀.

    E[Σ_k π_k log π_k] − Σ_k E[π_k] E[log π_k] = Σ_k (α_k/α₀) (ψ(α_k + 1) − ψ(α_k) − ψ(α₀ + 1) + ψ(α₀)), and
    ψ(a + 1) − ψ(a) = 1/a.
    """
    log_alpha = log_concentrations.double()
    return (log_alpha.shape[-1] - 1) * (-log_alpha.logsumexp(-1)).exp()


def _above_log(log_a: Tensor) -> Tensor:
    """ψ(a + 1) − log a from log a; for a large a by its series in 1/a, since the two agree in most digits."""
    a = log_a.exp()
    r = (1 / a.clamp_min(_LARGE)).square()
    series = (0.5 * r.sqrt()) - r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r / 240)))
    return torch.where(a < _LARGE, (a.clamp_max(_LARGE) + 1).digamma() - log_a, series)
