"""Separating unknown from known inputs by uncertainty: AUROC, AUPR, FPR95.

**Unknown is the positive class**: a detector raises the alarm where uncertainty is at or above a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RECALL = 0.95


@dataclass(frozen=True)
class Detection:
    """How well one uncertainty separates unknown from known inputs."""

    auroc: float
    """Probability that an unknown is less certain than a known input, ties counting half."""
    aupr: float
    """Average precision, unknown positive; its chance level is the share of unknowns."""
    fpr95: float
    """Share of knowns that raise the alarm at the highest threshold where 95 % of unknowns do."""


def energy(logits: Tensor) -> Tensor:
    """−log Σ_k exp z̄_k of the members' mean logits z̄ (Liu et al. 2020). [m n k] → [n]

    The energy of the mean prediction is 0 for every image, since probabilities sum to 1.
    """
    return -mean_logits(logits).logsumexp(-1)


def max_logit(logits: Tensor) -> Tensor:
    """−max_k z̄_k of the members' mean logits z̄ (Hendrycks et al. 2022). [m n k] → [n]"""
    return -mean_logits(logits).amax(-1)


def mean_logits(logits: Tensor) -> Tensor:
    """Mean over members in float64; ValueError for a NaN. [m n k] → [n k]"""
    if bool(logits.isnan().any()):
        raise ValueError("logits are NaN; the network that made them has diverged.")
    return logits.double().mean(0)


def detect(known: Tensor, unknown: Tensor) -> Detection:
    """The scores of one uncertainty, larger for less certain. known [n], unknown [u], neither empty"""
    if not len(known) or not len(unknown):
        raise ValueError("detection needs at least one known and one unknown example.")
    if bool(known.isnan().any() | unknown.isnan().any()):
        raise ValueError("an uncertainty is NaN; the network that made it has diverged.")
    values, group = torch.unique(torch.cat([known, unknown]).double(), return_inverse=True)
    # How many have each value, the most uncertain first. Counts stay whole numbers until the last division:
    # a recall of exactly 95 % must count as one.
    negative, positive = (
        torch.bincount(side, minlength=len(values)).double().flip(0)
        for side in group.split([len(known), len(unknown)])
    )
    hits, alarms = positive.cumsum(0), negative.cumsum(0)
    won = (positive * (len(known) - alarms + negative / 2)).sum()
    enough = int((hits / len(unknown) >= RECALL).nonzero()[0])
    return Detection(
        auroc=float(won / (len(known) * len(unknown))),
        aupr=float((positive * hits / (hits + alarms)).sum() / len(unknown)),
        fpr95=float(alarms[enough] / len(known)),
    )
