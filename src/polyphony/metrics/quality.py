"""Accuracy, NLL and Brier score: means over examples."""

from __future__ import annotations

from torch import Tensor

from polyphony.metrics.probabilities import check


def is_correct(log_probs: Tensor, labels: Tensor) -> Tensor:
    """1 if the most probable class is the label, else 0; of ties, the first class counts. [n k], [n] → [n]"""
    log_probs, labels = check(log_probs, labels)
    return (log_probs.argmax(-1) == labels).double()


def label_nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Minus the log-probability of the label, in nats; inf where its probability is 0. [n k], [n] → [n]"""
    log_probs, labels = check(log_probs, labels)
    return -log_probs.gather(1, labels[:, None])[:, 0]


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    """Fraction of examples whose most probable class is the label."""
    return float(is_correct(log_probs, labels).mean())


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood in nats; never clipped, so a label of probability 0 gives inf."""
    return float(label_nll(log_probs, labels).mean())


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Brier score: squared error **summed** over classes, mean over examples; 0 to 2.

    The paper's formula has a factor 1/K; its numbers do not, and neither do these.
    """
    log_probs, labels = check(log_probs, labels)
    error = log_probs.exp()
    error.scatter_add_(1, labels[:, None], error.new_full((len(labels), 1), -1.0))
    return float(error.square().sum(-1).mean())
