"""Scores: pure functions of log-probabilities and labels."""

from polyphony.metrics.calibration import (
    Reliability,
    adaptive_ece,
    classwise_ece,
    confidence,
    ece,
    reliability,
)
from polyphony.metrics.dee import calibrated_dee_curve, dee, dee_curve, dee_floored_at_one, format_dee
from polyphony.metrics.diversity import DiversityBins, disagreement, diversity_bins, mean_kld
from polyphony.metrics.probabilities import ensemble_log_probs, member_log_probs
from polyphony.metrics.quality import accuracy, brier, nll, top_k_accuracy
from polyphony.metrics.temperature import (
    TEMPERATURE_BOUNDS,
    fit_temperature,
    fit_temperature_blocks,
    temper,
)

__all__ = [
    "TEMPERATURE_BOUNDS",
    "DiversityBins",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "brier",
    "calibrated_dee_curve",
    "classwise_ece",
    "confidence",
    "dee",
    "dee_curve",
    "dee_floored_at_one",
    "disagreement",
    "diversity_bins",
    "ece",
    "ensemble_log_probs",
    "fit_temperature",
    "fit_temperature_blocks",
    "format_dee",
    "mean_kld",
    "member_log_probs",
    "nll",
    "reliability",
    "temper",
    "top_k_accuracy",
]
