"""Temperature scaling: the one temperature that minimises validation NLL, and its application."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from polyphony.metrics.probabilities import check

TEMPERATURE_BOUNDS = (0.05, 1e4)
"""Where `fit_temperature` looks. Validation data without an error would want 0, useless data infinity."""

_MAX_STEPS = 100
_TOLERANCE = 1e-8


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """log softmax(log p / τ) in float64. [… k] → [… k]"""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0; got {temperature}.")
    return (log_probs.double() / temperature).log_softmax(-1)


def fit_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """The τ within `TEMPERATURE_BOUNDS` that minimises the NLL of `temper(log_probs, τ)`. [n k], [n] → τ

    A label of probability 0 costs inf at every temperature; such an example has no say. Where no
    temperature is better than another (uniform predictions) the answer is 1.
    """
    gaps = _gaps(log_probs, labels)
    return 1 / _root(lambda beta: _slope(*gaps, beta))


def fit_temperature_blocks(blocks: Iterable[tuple[Tensor, Tensor]]) -> float:
    """`fit_temperature` over blocks of (log_probs [n k], labels [n]), gone through about ten times."""
    if iter(blocks) is blocks:
        raise ValueError("the blocks are gone through several times: give a list, not a generator.")

    def slope(beta: float) -> tuple[float, float]:
        parts = [_slope(*_gaps(*block), beta) for block in blocks]
        return math.fsum(first for first, _ in parts), math.fsum(second for _, second in parts)

    return 1 / _root(slope)


def _gaps(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities below the largest, z, and the label's own, where that is finite. [v k], [v]"""
    log_probs, labels = check(log_probs, labels)
    z = log_probs - log_probs.amax(-1, keepdim=True)
    own = z.gather(1, labels[:, None])[:, 0]
    # exp(β z) of a z this low is 0 and its moments vanish; −inf itself would make 0·inf.
    return z.clamp_min(-1e100)[own.isfinite()], own[own.isfinite()]


def _slope(z: Tensor, own: Tensor, beta: float) -> tuple[float, float]:
    """First and second derivative of the total NLL with respect to β = 1/τ: Σ (E z − z_y) and Σ Var z."""
    weights = (beta * z).exp()
    weighted = weights * z
    total = weights.sum(-1)
    mean, square = weighted.sum(-1) / total, (weighted * z).sum(-1) / total
    return float((mean - own).sum()), float((square - mean.square()).sum())


def _root(slope: Callable[[float], tuple[float, float]]) -> float:
    """Where the slope of the NLL, convex in β, is 0; else the bound it points to.

    Newton's method from β = 1 inside a bracket that shrinks with every step; where Newton would leave the
    bracket, it is halved on the log scale instead.
    """
    low, high = (1 / bound for bound in reversed(TEMPERATURE_BOUNDS))
    beta, (first, second) = 1.0, slope(1.0)
    end = low if first > 0 else high
    if first != 0 and slope(end)[0] * first >= 0:
        return end
    for _ in range(_MAX_STEPS):
        if first == 0:
            break
        low, high = (low, beta) if first > 0 else (beta, high)
        newton = beta - first / second if second > 0 else math.inf
        before, beta = beta, newton if low < newton < high else math.sqrt(low * high)
        if abs(beta - before) <= _TOLERANCE * beta:
            break
        first, second = slope(beta)
    return beta
