"""Ties: equal values share the mean of their outcomes."""

from __future__ import annotations

import torch
from torch import Tensor


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
