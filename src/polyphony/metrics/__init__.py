"""Scores: pure functions of log-probabilities and labels, in float64.

Logits are `[m n k]` (members, examples, classes), log-probabilities `[n k]`, labels `[n]`; NLL, entropies and
divergences are in nats. One function scores one thing; `scores` gives all that one labelled split has.

Ten million predictions need no more memory than a block: `tally` adds up blocks in sums of fixed size. Means
and binned scores come out exact, ranked ones (AUROC, AURC, …) from uncertainties rounded to 0.2 %; between
the two, `columns` keeps a row of numbers per example, which bootstrap intervals need.
"""

from polyphony.metrics.calibration import (
    Reliability,
    adaptive_ece,
    classwise_ece,
    confidence,
    ece,
    reliability,
    reliability_of,
)
from polyphony.metrics.corruption import CorruptionSummary, summarise_corruptions
from polyphony.metrics.detection import Detection, detect, detect_unknown, detect_unknown_logits
from polyphony.metrics.dirichlet import (
    dirichlet_bins,
    dirichlet_information,
    dirichlet_kld,
    dirichlet_uncertainties,
)
from polyphony.metrics.diversity import DiversityBins, disagreement, diversity_bins, diversity_of, mean_kld
from polyphony.metrics.equivalent import (
    dee,
    dee_curve,
    format_dee,
    format_dees,
)
from polyphony.metrics.health import Health, HealthCheck, Spread, Verdict
from polyphony.metrics.probabilities import ensemble_log_probs, member_log_probs
from polyphony.metrics.quality import accuracy, brier, nll, top_k_accuracy
from polyphony.metrics.scoring import Columns, columns, in_blocks, means, scores
from polyphony.metrics.selective import RiskCoverage, aurc, risk_coverage, risk_coverage_of
from polyphony.metrics.statistics import Interval, MeanSd, bootstrap, bootstrap_mean, format_mean_sd, mean_sd
from polyphony.metrics.streaming import Tally, UncertaintyTally, detect_unknown_tallies, tally, tally_unknown
from polyphony.metrics.temperature import (
    TEMPERATURE_BOUNDS,
    fit_temperature,
    temper,
)
from polyphony.metrics.uncertainty import (
    Uncertainties,
    entropy,
    member_entropy,
    mutual_information,
    predictive_entropy,
    uncertainties,
)

__all__ = [
    "TEMPERATURE_BOUNDS",
    "Columns",
    "CorruptionSummary",
    "Detection",
    "DiversityBins",
    "Health",
    "HealthCheck",
    "Interval",
    "MeanSd",
    "Reliability",
    "RiskCoverage",
    "Spread",
    "Tally",
    "Uncertainties",
    "UncertaintyTally",
    "Verdict",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "bootstrap",
    "bootstrap_mean",
    "brier",
    "classwise_ece",
    "columns",
    "confidence",
    "dee",
    "dee_curve",
    "detect",
    "detect_unknown",
    "detect_unknown_logits",
    "detect_unknown_tallies",
    "dirichlet_bins",
    "dirichlet_information",
    "dirichlet_kld",
    "dirichlet_uncertainties",
    "disagreement",
    "diversity_bins",
    "diversity_of",
    "ece",
    "ensemble_log_probs",
    "entropy",
    "fit_temperature",
    "format_dee",
    "format_dees",
    "format_mean_sd",
    "in_blocks",
    "mean_kld",
    "mean_sd",
    "means",
    "member_entropy",
    "member_log_probs",
    "mutual_information",
    "nll",
    "predictive_entropy",
    "reliability",
    "reliability_of",
    "risk_coverage",
    "risk_coverage_of",
    "scores",
    "summarise_corruptions",
    "tally",
    "tally_unknown",
    "temper",
    "top_k_accuracy",
    "uncertainties",
]
