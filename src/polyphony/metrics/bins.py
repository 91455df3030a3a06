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
    """The bin (low, high] of each value in [0, 1]: 0 is in the first bin, 1 in the last. Any shape → same.

    A value that exceeds an edge by at most `ROUNDING` counts as on the edge.
    """
    return torch.bucketize(values - ROUNDING, edges(bins)[1:-1])


def bin_sums(values: Tensor, bins: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """The number of examples in each bin, and the sums of columns there. [n] → [bins] each"""
    index = bin_index(values, bins)
    return tuple(torch.bincount(index, each, bins) for each in (torch.ones_like(values), *columns))
