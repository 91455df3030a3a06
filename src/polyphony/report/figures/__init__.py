"""The figures: each a function of a run that gives a chart, or says what is missing for it."""

from polyphony.report.figures.diversity import external_diversity, student_diversity, teacher_diversity
from polyphony.report.figures.efficiency import quality_for_cost
from polyphony.report.figures.jacobians import gradient_snr, jacobian_matching
from polyphony.report.figures.members import member_predictions
from polyphony.report.figures.quality import dee_curves, ensemble_curves, reliability_diagrams
from polyphony.report.figures.shift import corruption_boxes, entropy_histograms
from polyphony.report.figures.training import learning_curves

__all__ = [
    "corruption_boxes",
    "dee_curves",
    "ensemble_curves",
    "entropy_histograms",
    "external_diversity",
    "gradient_snr",
    "jacobian_matching",
    "learning_curves",
    "member_predictions",
    "quality_for_cost",
    "reliability_diagrams",
    "student_diversity",
    "teacher_diversity",
]
