"""Losses: distillation by Algorithm 1, other kinds of distillation, and cross-entropy on labels."""

from __future__ import annotations

from polyphony.distill.distribution import DistillDistribution, DistillProxy
from polyphony.distill.latent_factor import DistillFactors
from polyphony.distill.match import match_step_size
from polyphony.distill.one_to_one import CrossEntropy, Distill, DistillMean, Passes

__all__ = [
    "CrossEntropy",
    "Distill",
    "DistillDistribution",
    "DistillFactors",
    "DistillMean",
    "DistillProxy",
    "Passes",
    "match_step_size",
]
