"""Have members by rank-one factors collapsed? How far apart their factors are."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

from torch import Tensor, nn

from polyphony.nn.conversion import factors


def factor_distance(network: nn.Module) -> float:
    """Distance of two members' factors as a share of their norm, mean over pairs of members and over layers.

    A layer's factors are compared as the matrices s_j r_jᵀ that multiply its weights, in the Frobenius norm:
    r and s alone may differ by a number that goes from one to the other and changes nothing. 0 is a network
    whose members have the same weights; fresh factors, N(1, ½²), give about √(1.125 / 1.5625) = 0.85.
    """
    flat = list(factors(network))
    if not flat or len(flat[0]) < 2:
        raise ValueError("a distance of members needs rank-one factors of at least two")
    return fmean(layer_distance(r, s) for r, s in zip(flat[::2], flat[1::2], strict=True))


def layer_distance(r: Tensor, s: Tensor) -> float:
    """‖s_i r_iᵀ − s_j r_jᵀ‖ / √((‖s_i r_iᵀ‖² + ‖s_j r_jᵀ‖²) / 2), mean over pairs. [m i], [m o] → scalar"""
    r, s = r.detach().cpu().double(), s.detach().cpu().double()
    inner = (r @ r.T) * (s @ s.T)  # ⟨s_i r_iᵀ, s_j r_jᵀ⟩ of all pairs, without the matrices
    squares = inner.diagonal()
    pairs = list(combinations(range(len(r)), 2))
    apart = [squares[i] + squares[j] - 2 * inner[i, j] for i, j in pairs]
    norms = [(squares[i] + squares[j]) / 2 for i, j in pairs]
    return fmean(
        float((a.clamp_min(0) / n).sqrt()) if n > 0 else 0.0 for a, n in zip(apart, norms, strict=True)
    )
