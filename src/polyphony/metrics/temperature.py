"""Temperature scaling: the one temperature that minimises validation NLL, and its application."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from polyphony.metrics.probabilities import check

TEMPERATURE_BOUNDS = (0.05, 1e4)
"""Where `fit_temperature` looks. Validation data without an error would want 0, useless data infinity."""

_MAX_STEPS = 100
_TOLERANCE = 1e-10


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
    return fit_temperature_blocks([(log_probs, labels)])


def fit_temperature_blocks(blocks: Iterable[tuple[Tensor, Tensor]]) -> float:
    """`fit_temperature` over blocks of (log_probs [n k], labels [n]), gone through about ten times.

    NLL is convex in β = 1/τ; Newton's method finds the root of its slope, inside a bracket that shrinks
    with every step and is halved on the log scale whenever Newton would leave it.
    """
    low, high = (1 / bound for bound in reversed(TEMPERATURE_BOUNDS))
    slope, curvature = _slope(blocks, 1.0)
    if slope == 0:
        return 1.0
    end = low if slope > 0 else high
    if _slope(blocks, end)[0] * slope >= 0:
        return 1 / end
    beta = 1.0
    for _ in range(_MAX_STEPS):
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = beta - slope / curvature if curvature > 0 else math.inf
        before, beta = beta, step if low < step < high else math.sqrt(low * high)
        if abs(beta - before) <= _TOLERANCE * beta:
            break
        slope, curvature = _slope(blocks, beta)
        if slope == 0:
            break
    return 1 / beta


def _slope(blocks: Iterable[tuple[Tensor, Tensor]], beta: float) -> tuple[float, float]:
    """First and second derivative of the total NLL with respect to β: Σ (E z − z_y) and Σ Var z."""
    first = second = 0.0
    for block in blocks:
        log_probs, labels = check(*block)
        z = log_probs - log_probs.amax(-1, keepdim=True)
        own = z.gather(1, labels[:, None])[:, 0]
        # exp(β z) of a z this low is 0 and its moments vanish; −inf itself would make 0·inf.
        z = z.clamp_min(-1e100)
        weights = (beta * z).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        mean = torch.einsum("nk,nk->n", weights, z)
        square = torch.einsum("nk,nk,nk->n", weights, z, z)
        known = own.isfinite()
        first += float((mean - own)[known].sum())
        second += float((square - mean.square())[known].sum())
    return first, second
