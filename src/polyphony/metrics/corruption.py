"""A score on corrupted inputs, summarised over corruption types and severities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class CorruptionSummary:
    """Means of one score over a full grid of corruption types and severities."""

    by_type: dict[str, float]
    """Mean over severities."""
    by_severity: dict[int, float]
    """Mean over types."""
    mean: float
    """Mean over all."""


def summarise_corruptions(scores: Mapping[tuple[str, int], float]) -> CorruptionSummary:
    """Summarise a score given for each (type, severity).

    The grid must be full: means over different severities, or types, would not compare.
    """
    types = list(dict.fromkeys(kind for kind, _ in scores))
    severities = sorted({severity for _, severity in scores})
    missing = [f"{kind} {level}" for kind in types for level in severities if (kind, level) not in scores]
    if missing or not scores:
        raise ValueError(f"corruption scores are missing: {', '.join(missing) or 'all of them'}.")
    return CorruptionSummary(
        {kind: fmean(scores[kind, level] for level in severities) for kind in types},
        {level: fmean(scores[kind, level] for kind in types) for level in severities},
        fmean(scores.values()),
    )
