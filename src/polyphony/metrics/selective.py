"""Answering only where sure: risk against coverage, and the area under that curve (AURC)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyphony.metrics.bins import BinSums
from polyphony.metrics.calibration import confidence, doubt_groups
from polyphony.metrics.quality import is_correct


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the examples answered, at each share answered, most confident first. Both [g]."""

    coverage: Tensor
    risk: Tensor


def risk_coverage(log_probs: Tensor, labels: Tensor) -> RiskCoverage:
    """One point for each distinct confidence: who is as confident is answered together."""
    return risk_coverage_of(doubt_groups(confidence(log_probs), is_correct(log_probs, labels)))


def aurc(log_probs: Tensor, labels: Tensor) -> float:
    """Mean over i = 1..n of the error rate among the i most confident examples; lower is better.

    Among equal confidences errors are spread evenly: the expectation over their random order.
    """
    return aurc_of(doubt_groups(confidence(log_probs), is_correct(log_probs, labels)))


def risk_coverage_of(doubts: BinSums) -> RiskCoverage:
    """The curve of examples already grouped by doubt, ascending; empty groups make no point."""
    some = doubts.count > 0
    answered = doubts.count[some].cumsum(0)
    return RiskCoverage(answered / answered[-1], doubts.second[some].cumsum(0) / answered)


def aurc_of(doubts: BinSums) -> float:
    """AURC of examples already grouped by doubt, ascending."""
    some = doubts.count > 0
    count, errors = doubts.count[some], doubts.second[some]
    before, errors_before = count.cumsum(0) - count, errors.cumsum(0) - errors
    # Σ_{i=1..c} (E + i·e/c) / (C + i) = e + (E − C·e/c)·(H_{C+c} − H_C), H_i the harmonic numbers.
    harmonic = torch.special.digamma(before + count + 1) - torch.special.digamma(before + 1)
    area = errors + (errors_before - before * errors / count) * harmonic
    return float(area.sum() / count.sum())
