"""Scores: functions of logits and labels alone, in float64.

`Predictions` holds the logits and labels of a split; its methods are the scores. The other names are
functions and results that several scores share. Logits are `[m n k]` (members, examples, classes),
log-probabilities `[n k]`, labels `[n]`; NLL, entropies and divergences are in nats.
"""

from polyphony.metrics.calibration import Reliability, reliability
from polyphony.metrics.conformal import APS, SetMeasure, lac, set_quality
from polyphony.metrics.detection import detect
from polyphony.metrics.equivalent import dee, dee_curve
from polyphony.metrics.predictions import DirichletPredictions, Predictions
from polyphony.metrics.probabilities import ensemble_log_probs
from polyphony.metrics.quality import accuracy, nll
from polyphony.metrics.statistics import MeanSd, mean_sd, paired
from polyphony.metrics.uncertainty import DiversityBins, disagreement, entropy

__all__ = [
    "APS",
    "DirichletPredictions",
    "DiversityBins",
    "MeanSd",
    "Predictions",
    "Reliability",
    "SetMeasure",
    "accuracy",
    "dee",
    "dee_curve",
    "detect",
    "disagreement",
    "ensemble_log_probs",
    "entropy",
    "lac",
    "mean_sd",
    "nll",
    "paired",
    "reliability",
    "set_quality",
]
