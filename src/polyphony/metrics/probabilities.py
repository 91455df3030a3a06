"""From logits to normalised log-probabilities in float64, for all scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def member_log_probs(logits: Tensor) -> Tensor:
    """Log-softmax of each member's logits in float64, finite wherever the logits are. [m n k] → [m n k]"""
    if logits.ndim != 3 or 0 in logits.shape:
        raise ValueError(f"logits must be [members examples classes], none empty; got {list(logits.shape)}.")
    log_probs = logits.double().log_softmax(-1)
    _reject_nan(log_probs)
    return log_probs


def mean_log_probs(log_probs: Tensor) -> Tensor:
    """Log of the mean probability over the leading dimension. [m … k] → [… k]"""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def ensemble_log_probs(logits: Tensor) -> Tensor:
    """Log of the mean member softmax, float64: the ensemble's prediction and its logit. [m n k] → [n k]"""
    # A confidence above 1 by rounding would give a negative doubt.
    return mean_log_probs(member_log_probs(logits)).clamp_max(0.0)


def check(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities as float64 [n k] and labels as int64 [n]; raises a ValueError for other input."""
    if log_probs.ndim != 2 or 0 in log_probs.shape:
        raise ValueError(f"log-probabilities must be [examples classes]; got {list(log_probs.shape)}.")
    if labels.shape != log_probs.shape[:1]:
        raise ValueError(f"{list(labels.shape)} labels do not fit {len(log_probs)} predictions.")
    labels = labels.long()
    if labels.min() < 0 or labels.max() >= log_probs.shape[1]:
        raise ValueError(f"labels must lie in 0..{log_probs.shape[1] - 1}, the predicted classes.")
    _reject_nan(log_probs)
    return log_probs.double(), labels


def _reject_nan(log_probs: Tensor) -> None:
    # A NaN would fall into some bin and some class: scores would be wrong but plausible.
    bad = int(torch.isnan(log_probs).any(-1).sum())
    if bad:
        raise ValueError(f"{bad} predictions are NaN; the network that predicted them has diverged.")
