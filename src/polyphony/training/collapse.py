"""Measures after each epoch how much members differ; the warning if they become the same predictor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyphony import metrics
from polyphony.ensembles import Ensemble
from polyphony.metrics.probabilities import member_log_probs
from polyphony.metrics.uncertainty import pairwise_kld
from polyphony.nn import factor_distance, factors

Row = dict[str, float]  # one epoch of a training's log

EPOCHS = 3  # a collapse is so many epochs in a row below both limits
MAX_DISAGREEMENT = 0.05  # relative to the members' error rate; about 1 for deep ensembles
MAX_KLD = 1e-3  # mean-KLD in nats


def spread(model: Ensemble, logits: Tensor, labels: Tensor) -> Row:
    """How much members differ in their predictions, and in their rank-one factors if they have any.

    Empty for one member. logits [m n k], labels [n]
    """
    if model.members == 1:
        return {}
    members = member_log_probs(logits)
    error = 1 - sum(metrics.accuracy(member, labels) for member in members) / len(members)
    row = {
        "valid_member_acc": 1 - error,
        "valid_disagreement": metrics.disagreement(logits),
        "valid_kld": float(pairwise_kld(members).mean()),
    }
    return row | {"factor_distance": factor_distance(model)} if list(factors(model)) else row


def is_new(log: Sequence[Row]) -> bool:
    """Whether members collapsed in each of the last `EPOCHS` epochs, and never for so long before.

    One epoch alone means little: members that learn slowly may all predict the same class for a while.
    """
    collapsed = [is_collapsed(row) for row in log]
    ends = [end for end in range(EPOCHS, len(log) + 1) if all(collapsed[end - EPOCHS : end])]
    return ends == [len(log)]


def is_collapsed(row: Row) -> bool:
    """Whether members were the same predictor after an epoch. False if all members are always correct."""
    error = 1 - row.get("valid_member_acc", 1.0)
    return error > 0 and row["valid_disagreement"] < MAX_DISAGREEMENT * error and row["valid_kld"] < MAX_KLD


def warning(row: Row) -> str:
    """The warning for an epoch: what happened, and what to change."""
    distance = row.get("factor_distance")
    factors = "" if distance is None else f", their factors differ by {distance:.0%} of their norm"
    return (
        f"after epoch {row['epoch'] + 1:.0f} the members are almost one predictor (they name different"
        f" classes on {row['valid_disagreement']:.2%} of the validation images{factors}): distil on perturbed"
        ' images (perturb = "ods"), take a larger step_size, or train one network, which costs less'
    )
