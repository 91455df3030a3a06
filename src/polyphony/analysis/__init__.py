"""What needs models, not only their logits: Jacobians, gradients, transfer, members, latency, factors."""

from polyphony.analysis.jacobians import jacobian_cosines
from polyphony.analysis.latency import latencies
from polyphony.analysis.members import member_views
from polyphony.analysis.progress import Progress
from polyphony.analysis.snr import Moments, Snr, gradient_snr, snr_of
from polyphony.analysis.tables import SavedRows, load_parts, save_tensors, saved_key, write_table, write_text
from polyphony.analysis.transfer import external_predictions
from polyphony.nn import factor_distance

__all__ = [
    "Moments",
    "Progress",
    "SavedRows",
    "Snr",
    "external_predictions",
    "factor_distance",
    "gradient_snr",
    "jacobian_cosines",
    "latencies",
    "load_parts",
    "member_views",
    "save_tensors",
    "saved_key",
    "snr_of",
    "write_table",
    "write_text",
]
