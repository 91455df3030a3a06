"""Equal-width bins of [0, 1], each open below and closed above."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 2.0**-40
"""Probabilities closer than this (1e-12) are equal: a third must not change bins with its last digit."""


def edges(bins: int) -> Tensor:
    """The `bins` + 1 edges i / bins, each correctly rounded. → [bins + 1]"""
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def bin_index(values: Tensor, bins: int) -> Tensor:
    """Which (low, high] a value of [0, 1] falls in: 1 in the last, 0 in the first. Any shape → same.

    A value above an edge by no more than `ROUNDING` is on it.
    """
    return torch.bucketize(values - ROUNDING, edges(bins)[1:-1])


def bin_sums(values: Tensor, bins: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """How many examples fall into each bin by their values, and columns' sums there. [n] → [bins] each"""
    index = bin_index(values, bins)
    return tuple(torch.bincount(index, each, bins) for each in (torch.ones_like(values), *columns))
