"""What a student is trained on: Algorithm 1, its relatives, and the same network without teachers."""

from __future__ import annotations

from polyphony.distill.distribution import DistillDistribution, DistillProxy
from polyphony.distill.labels import CrossEntropy
from polyphony.distill.match import match_step_size
from polyphony.distill.mean import DistillMean
from polyphony.distill.one_to_one import Distill, Passes

__all__ = [
    "CrossEntropy",
    "Distill",
    "DistillDistribution",
    "DistillMean",
    "DistillProxy",
    "Passes",
    "match_step_size",
]
