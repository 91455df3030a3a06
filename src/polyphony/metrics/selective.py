"""Selective prediction: the error rate if only the most certain images are answered.

Examples are sorted by ascending uncertainty. The risk r_i, at coverage i/n, is the error rate among the first
i of n examples. If uncertainties are equal, r_i is the mean over all orders of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polyphony.metrics.bins import in_order
from polyphony.metrics.detection import detect

ROUNDING = 1e-9
"""Tolerance for rounding: ⌈0.55 × 100⌉ must be 55, although 0.55 × 100 is slightly above 55 in floats."""


@dataclass(frozen=True, eq=False)
class Selective:
    """The risk–coverage curve of one uncertainty."""

    uncertainty: Tensor
    """Larger for less certain. [n]"""
    errors: Tensor
    """1 where the prediction is wrong, else 0. [n]"""

    @cached_property
    def risk(self) -> Tensor:
        """r_i, the error rate among the i most certain examples, for i = 1..n. [n]"""
        _, errors = in_order(self.uncertainty, self.errors)
        return errors.cumsum(0) / torch.arange(1, len(errors) + 1)

    @property
    def aurc(self) -> float:
        """Area under the curve: (1/n) Σ_i r_i (Geifman and El-Yaniv 2017). Lower is better."""
        return float(self.risk.mean())

    @property
    def excess_aurc(self) -> float:
        """AURC minus the AURC of the best order: all errors last (Geifman et al. 2019). 0 at best."""
        best = Selective(self.errors, self.errors)
        return max(0.0, self.aurc - best.aurc)

    def risk_at(self, coverage: float) -> float:
        """Error rate among the ⌈coverage · n⌉ most certain examples."""
        return float(self.risk[images_at(coverage, len(self.errors)) - 1])

    def coverage_at(self, risk: float) -> float:
        """The largest coverage at which the error rate is at most `risk`; 0 if there is none."""
        allowed = (self.risk <= risk + ROUNDING).nonzero()
        return (int(allowed[-1]) + 1) / len(self.errors) if len(allowed) else 0.0

    @property
    def auroc(self) -> float | None:
        """Probability that an error is less certain than a correct answer; ties count half.

        None if all answers are correct, or all wrong.
        """
        wrong = self.errors.bool()
        if not bool(wrong.any()) or bool(wrong.all()):
            return None
        return detect(self.uncertainty[~wrong], self.uncertainty[wrong]).auroc

    def scores(self) -> dict[str, float | None]:
        """Scores of the curve by their columns in scores.csv."""
        return {
            "aurc": self.aurc,
            "excess_aurc": self.excess_aurc,
            "error_80": self.risk_at(0.8),
            "error_90": self.risk_at(0.9),
            "coverage_5": self.coverage_at(0.05),
            "error_auroc": self.auroc,
        }


def images_at(coverage: float, count: int) -> int:
    """The number of images answered at a coverage: ⌈coverage · count⌉, at least one."""
    if not 0 < coverage <= 1:
        raise ValueError(f"a coverage must be above 0 and at most 1; got {coverage}.")
    return max(1, math.ceil(coverage * count - ROUNDING))
