"""How good a prediction is: accuracy, top-k accuracy, NLL and Brier score.

Each score is the mean of a per-example column of the same theme (`is_correct`, `label_nll`, …).
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyphony.metrics.probabilities import check


def is_correct(log_probs: Tensor, labels: Tensor) -> Tensor:
    """1 where the most probable class is the label, else 0; of equals the first counts. [n k], [n] → [n]"""
    log_probs, labels = check(log_probs, labels)
    return (log_probs.argmax(-1) == labels).double()


def is_in_top(log_probs: Tensor, labels: Tensor, size: int) -> Tensor:
    """1 where fewer than `size` classes rank above the label, else 0. [n k], [n] → [n]

    Of equally probable classes the one with the smaller index ranks higher, as in `is_correct`.
    """
    log_probs, labels = check(log_probs, labels)
    own = log_probs.gather(1, labels[:, None])
    before = torch.arange(log_probs.shape[1], device=labels.device) < labels[:, None]
    above = (log_probs > own) | ((log_probs == own) & before)
    return (above.sum(-1) < size).double()


def label_nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Minus the log-probability of the label, in nats; inf where its probability is 0. [n k], [n] → [n]"""
    log_probs, labels = check(log_probs, labels)
    return -log_probs.gather(1, labels[:, None])[:, 0]


def squared_error(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_k (p_k − y_k)², between 0 and 2. [n k], [n] → [n]"""
    log_probs, labels = check(log_probs, labels)
    error = log_probs.exp()
    error.scatter_add_(1, labels[:, None], error.new_full((len(labels), 1), -1.0))
    return error.square().sum(-1)


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    """Fraction of examples whose most probable class is the label."""
    return float(is_correct(log_probs, labels).mean())


def top_k_accuracy(log_probs: Tensor, labels: Tensor, size: int = 5) -> float:
    """Fraction of examples whose label is among the `size` most probable classes."""
    return float(is_in_top(log_probs, labels, size).mean())


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood in nats; never clipped, so a label of probability 0 gives inf."""
    return float(label_nll(log_probs, labels).mean())


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Brier score: squared error **summed** over classes, mean over examples; 0 to 2.

    The paper prints a factor 1/K in its formula; its numbers are without it, and so are these.
    """
    return float(squared_error(log_probs, labels).mean())
