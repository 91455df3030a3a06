"""Telling unknown inputs from known ones by uncertainty: AUROC, AUPR, FPR95.

**Unknown is the positive class** unless a name says otherwise: a detector raises the alarm where uncertainty
is at or above a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from polyphony.metrics.uncertainty import Uncertainties, uncertainties

RECALL = 0.95


@dataclass(frozen=True)
class Detection:
    """How well one uncertainty separates unknown from known inputs."""

    auroc: float
    """Probability that an unknown is less certain than a known input, ties counting half."""
    aupr: float
    """Average precision, unknown positive; its chance level is the share of unknowns."""
    aupr_known: float
    """Average precision, known positive, ranked by certainty."""
    fpr95: float
    """Share of knowns that raise the alarm at the highest threshold where 95 % of unknowns do."""
    fpr95_known: float
    """Share of unknowns accepted at the lowest threshold where 95 % of knowns are (known positive)."""


def detect(known: Tensor, unknown: Tensor) -> Detection:
    """The scores of one uncertainty, larger for less certain. known [n], unknown [u], neither empty"""
    values, group = torch.unique(torch.cat([known, unknown]).double(), return_inverse=True)
    counts = (torch.bincount(part, minlength=len(values)) for part in group.split([len(known), len(unknown)]))
    return detect_from_counts(*counts)


def detect_from_counts(known: Tensor, unknown: Tensor) -> Detection:
    """The same from how many examples have each uncertainty, in ascending order. [g], [g]"""
    if not known.sum() or not unknown.sum():
        raise ValueError("detection needs at least one known and one unknown example.")
    # Counts stay whole numbers until the last division: a recall of exactly 95 % must count as one.
    known, unknown = known.double(), unknown.double()
    pairs = known.sum() * unknown.sum()
    won = (unknown * (known.cumsum(0) - known / 2)).sum()
    alarms = _Ranking(unknown.flip(0), known.flip(0))
    accepted = _Ranking(known, unknown)
    return Detection(
        auroc=float(won / pairs),
        aupr=alarms.average_precision(),
        aupr_known=accepted.average_precision(),
        fpr95=alarms.false_positive_rate(RECALL),
        fpr95_known=accepted.false_positive_rate(RECALL),
    )


def detect_unknown(known: Uncertainties, unknown: Uncertainties) -> dict[str, Detection]:
    """Detection by each uncertainty: `entropy`, `mutual_information`, `doubt` (negative confidence)."""
    names = [field.name for field in fields(Uncertainties)]
    return {name: detect(getattr(known, name), getattr(unknown, name)) for name in names}


def detect_unknown_logits(known: Tensor, unknown: Tensor, temperature: float = 1.0) -> dict[str, Detection]:
    """`detect_unknown` from logits. [m n k], [m u k]"""
    return detect_unknown(uncertainties(known, temperature), uncertainties(unknown, temperature))


@dataclass(frozen=True)
class _Ranking:
    """Counts of positives and negatives at each threshold, those flagged first coming first. [g], [g]"""

    positive: Tensor
    negative: Tensor

    def average_precision(self) -> float:
        """Σ (recall gained at a threshold) · (precision there)."""
        hits = self.positive.cumsum(0)
        flagged = hits + self.negative.cumsum(0)
        precision = hits / flagged.clamp_min(1.0)
        return float((self.positive * precision).sum() / self.positive.sum())

    def false_positive_rate(self, recall: float) -> float:
        """Share of negatives flagged at the first threshold that flags this share of positives."""
        hits = self.positive.cumsum(0)
        first = int((hits / hits[-1] >= recall).nonzero()[0])
        return float(self.negative[: first + 1].sum() / self.negative.sum())
