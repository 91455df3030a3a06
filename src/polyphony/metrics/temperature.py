"""Temperature scaling: the one temperature that minimises validation NLL, and its application."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyphony.metrics.probabilities import check

TEMPERATURE_BOUNDS = (0.05, 1e4)
"""Range of `fit_temperature`. Predictions without errors would fit 0, useless predictions infinity."""

_MAX_STEPS = 100
_TOLERANCE = 1e-8


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """log softmax(log p / τ) in float64. [… k] → [… k]"""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0; got {temperature}.")
    return (log_probs.double() / temperature).log_softmax(-1)


def fit_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """The τ within `TEMPERATURE_BOUNDS` that minimises the NLL of `temper(log_probs, τ)`. [n k], [n] → τ

    Examples whose label has probability 0 are ignored: they cost inf at every temperature. Returns 1 if all
    temperatures are equally good (uniform predictions).
    """
    log_probs, labels = check(log_probs, labels)
    return float(fit_temperatures(log_probs[None], labels)[0])


def fit_temperatures(log_probs: Tensor, labels: Tensor) -> Tensor:
    """`fit_temperature` of several models' predictions of the same examples. [s n k], [n] → τ [s]"""
    z = log_probs - log_probs.amax(-1, keepdim=True)
    label_z = z[:, torch.arange(len(labels)), labels]
    # exp(β z) of a z this low is 0, and so are its moments; −inf would give NaN (0·inf).
    z, counts = z.clamp_min(-1e100), label_z.isfinite()

    def slope(beta: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of the total NLL by β = 1/τ: Σ (E z − z_y) and Σ Var z. [s] → [s]"""
        weights = (beta[:, None, None] * z).exp()
        weighted = weights * z
        total = weights.sum(-1)
        mean, square = weighted.sum(-1) / total, (weighted * z).sum(-1) / total
        first, second = (mean - label_z).where(counts, 0.0), (square - mean.square()).where(counts, 0.0)
        return first.sum(-1), second.sum(-1)

    return 1 / _roots(slope, z.new_ones(len(z)))


def _roots(slope: Callable[[Tensor], tuple[Tensor, Tensor]], beta: Tensor) -> Tensor:
    """The β at which each slope is 0, or the bound of β nearest to it. [s] → [s]

    The NLL is convex in β. This is Newton's method inside a bracket that shrinks with every step. If a Newton
    step would leave the bracket, the next β is the bracket's middle on a log scale.
    """
    low, high = (torch.full_like(beta, 1 / bound) for bound in reversed(TEMPERATURE_BOUNDS))
    first, second = slope(beta)
    end = torch.where(first > 0, low, high)
    outside = (first != 0) & (slope(end)[0] * first >= 0)
    beta = torch.where(outside, end, beta)
    done = outside | (first == 0)
    for _ in range(_MAX_STEPS):
        low, high = torch.where(first > 0, low, beta), torch.where(first > 0, beta, high)
        newton = beta - first / second
        inside = (second > 0) & (low < newton) & (newton < high)
        step = torch.where(inside, newton, (low * high).sqrt())
        near = (step - beta).abs() <= _TOLERANCE * step
        beta = torch.where(done, beta, step)
        done |= near
        if done.all():
            break
        first, second = slope(beta)
        done |= first == 0
    return beta
