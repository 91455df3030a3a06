"""Analyses that need models, not only their logits: Jacobians, gradients, transfer, members, latency."""

from polyphony.analysis.jacobians import jacobian_cosines
from polyphony.analysis.latency import latencies
from polyphony.analysis.members import external_predictions, member_views
from polyphony.analysis.snr import gradient_snr

__all__ = [
    "external_predictions",
    "gradient_snr",
    "jacobian_cosines",
    "latencies",
    "member_views",
]
