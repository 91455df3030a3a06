"""Telling unknown inputs from known ones by uncertainty: AUROC, AUPR, FPR95.

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


def detect(known: Tensor, unknown: Tensor) -> Detection:
    """The scores of one uncertainty, larger for less certain. known [n], unknown [u], neither empty"""
    if not len(known) or not len(unknown):
        raise ValueError("detection needs at least one known and one unknown example.")
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
