"""Equal-width bins of [0, 1], each open below and closed above, as sums that add up over blocks."""

from __future__ import annotations

from dataclasses import dataclass

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
    return torch.bucketize(values - ROUNDING, edges(bins)[1:-1].to(values.device))


@dataclass(frozen=True)
class BinSums:
    """How many examples fell into each bin, and the sums of two numbers per example over each. All [b].

    Sums of disjoint blocks add (`+`) to the sums of the whole.
    """

    count: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, index: Tensor, size: int, first: Tensor, second: Tensor) -> BinSums:
        """Sums over the examples' bins. index, first, second [n] → [size] each"""
        count, *sums = (
            torch.bincount(index, weights=weights, minlength=size)
            for weights in (torch.ones_like(first), first, second)
        )
        return cls(count, *sums)

    def __add__(self, other: BinSums) -> BinSums:
        return BinSums(self.count + other.count, self.first + other.first, self.second + other.second)
