"""Equal-width bins of [0, 1], each open below and closed above; and values in order, with ties."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 2.0**-40
"""Probabilities closer than this (1e-12) are equal: a third must not change bins with its last digit."""


def edges(bins: int) -> Tensor:
    """The `bins` + 1 edges i / bins, each correctly rounded. → [bins + 1]"""
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def bin_index(values: Tensor, bins: int) -> Tensor:
    """The bin (low, high] of each value in [0, 1]: 0 is in the first bin, 1 in the last. Any shape → same.

    A value that exceeds an edge by at most `ROUNDING` counts as on the edge.
    """
    return torch.bucketize(values - ROUNDING, edges(bins)[1:-1])


def bin_sums(values: Tensor, bins: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """The number of examples in each bin, and the sums of columns there. [n] → [bins] each"""
    index = bin_index(values, bins)
    return tuple(torch.bincount(index, each, bins) for each in (torch.ones_like(values), *columns))


def in_order(values: Tensor, outcomes: Tensor) -> tuple[Tensor, Tensor]:
    """Values in ascending order, and the outcomes in that order; equal values share their mean outcome.

    A sum over the first i outcomes is then its expectation over a random order of equal values, and does not
    depend on the order of the examples. 2 × [n] → 2 × [n]; raises a ValueError for a NaN.
    """
    if values.shape != outcomes.shape or values.dim() != 1 or not len(values):
        raise ValueError(f"{list(values.shape)} values do not fit {list(outcomes.shape)} outcomes.")
    if bool(values.isnan().any() | outcomes.isnan().any()):
        raise ValueError("NaN has no place in an order; the network that made it has diverged.")
    found, group, count = values.double().unique(return_inverse=True, return_counts=True)
    means = torch.bincount(group, outcomes.double(), len(found)) / count
    return found.repeat_interleave(count), means.repeat_interleave(count)
