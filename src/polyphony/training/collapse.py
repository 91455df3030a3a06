"""Warns once if members become the same predictor in training; measured after each epoch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyphony import metrics
from polyphony.ensembles import Ensemble
from polyphony.metrics.probabilities import member_log_probs
from polyphony.nn import factor_distance, factors

Row = dict[str, float]  # one epoch of a training's log

LASTING = 3  # epochs in a row that make a collapse
OF_ERRORS = 0.05  # disagreement relative to the members' error rate; about 1 for deep ensembles
IN_NATS = 1e-3  # mean-KLD


def spread(model: Ensemble, logits: Tensor, labels: Tensor) -> Row:
    """How far apart members are in their predictions, and in their rank-one factors if they have any.

    Empty for one member. logits [m n k], labels [n]
    """
    if model.members == 1:
        return {}
    members = member_log_probs(logits)
    error = 1 - sum(metrics.accuracy(member, labels) for member in members) / len(members)
    row = {
        "valid_member_acc": 1 - error,
        "valid_disagreement": metrics.disagreement(logits),
        "valid_kld": metrics.mean_kld(logits),
    }
    return row | {"factor_distance": factor_distance(model)} if list(factors(model)) else row


def is_new(log: Sequence[Row]) -> bool:
    """Whether members were the same predictor in the last `LASTING` epochs, for the first time.

    One epoch alone means little: members that learn slowly may all predict the same class for a while.
    """
    seen = [is_seen(row) for row in log]
    ends = [end for end in range(LASTING, len(log) + 1) if all(seen[end - LASTING : end])]
    return ends == [len(log)]


def is_seen(row: Row) -> bool:
    """Whether members are the same predictor in an epoch; not if they agree because they are never wrong."""
    error = 1 - row.get("valid_member_acc", 1.0)
    return error > 0 and row["valid_disagreement"] < OF_ERRORS * error and row["valid_kld"] < IN_NATS


def words(row: Row) -> str:
    """The warning for an epoch: what happened, and what to change."""
    distance = row.get("factor_distance")
    apart = "" if distance is None else f", their factors differ by {distance:.0%} of their norm"
    return (
        f"after epoch {row['epoch'] + 1:.0f} the members are almost one predictor (they name different"
        f" classes on {row['valid_disagreement']:.2%} of the validation images{apart}): distil on perturbed"
        " images"
        ' (perturb = "ods"), take a larger step_size, or train one network, which costs less'
    )
