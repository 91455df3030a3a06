"""Equal-width bins (low, high] of [0, 1], and sorting with ties."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 2.0**-40
"""Tolerance (1e-12) at the edge of a bin, so that the rounding of 1/3 does not move it to another bin."""


def edges(bins: int) -> Tensor:
    """The `bins` + 1 edges i / bins, each correctly rounded. → [bins + 1]"""
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def bin_index(values: Tensor, bins: int) -> Tensor:
    """The index of the bin (low, high] of each value in [0, 1]; 0 is in the first bin. Any shape → same.

    A value above an edge by at most `ROUNDING` counts as equal to the edge.
    """
    return torch.bucketize(values - ROUNDING, edges(bins)[1:-1])


def bin_sums(values: Tensor, bins: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """For each bin of `values`: the number of examples, and the sum of each column. [n] → [bins] each"""
    index = bin_index(values, bins)
    return tuple(torch.bincount(index, column, bins) for column in (torch.ones_like(values), *columns))


def in_order(values: Tensor, outcomes: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted values, and their outcomes; equal values get their mean outcome. 2 × [n] → 2 × [n]

    So a sum over the first i outcomes does not depend on the order of the examples: it is the expectation
    over a random order of equal values. Raises a ValueError if shapes differ, or for a NaN.
    """
    if values.shape != outcomes.shape or values.dim() != 1 or not len(values):
        raise ValueError(f"{list(values.shape)} values do not fit {list(outcomes.shape)} outcomes.")
    if bool(values.isnan().any() | outcomes.isnan().any()):
        raise ValueError("NaN cannot be sorted; the network that predicted it has diverged.")
    distinct, group, count = values.double().unique(return_inverse=True, return_counts=True)
    means = torch.bincount(group, outcomes.double(), len(distinct)) / count
    return distinct.repeat_interleave(count), means.repeat_interleave(count)
