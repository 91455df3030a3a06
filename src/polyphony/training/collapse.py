"""Do members become one predictor while they train? Measured each epoch, said once, in words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyphony import metrics
from polyphony.ensembles import Ensemble
from polyphony.nn import factor_distance, factors

Row = dict[str, float]  # one epoch of a training's log

LASTING = 3  # epochs in a row that make a collapse


def spread(model: Ensemble, logits: Tensor, labels: Tensor) -> Row:
    """How far apart members are in their predictions, and in their rank-one factors where they have any.

    Nothing for one member. logits [m n k], labels [n]
    """
    if model.members == 1:
        return {}
    found = metrics.Spread.of(logits, labels)
    row = {
        "valid_member_acc": 1 - found.error,
        "valid_disagreement": found.disagreement,
        "valid_kld": found.kld,
    }
    return row | {"factor_distance": factor_distance(model)} if list(factors(model)) else row


def is_new(log: Sequence[Row]) -> bool:
    """Whether members count as one predictor in the last `LASTING` epochs, and never before in so many.

    One epoch alone means little: members that learn slowly may all name the same class for a while.
    """
    seen = [is_seen(row) for row in log]
    ends = [end for end in range(LASTING, len(log) + 1) if all(seen[end - LASTING : end])]
    return ends == [len(log)]


def is_seen(row: Row) -> bool:
    """Whether members count as one predictor in an epoch; not where they are never wrong, and so agree."""
    if row.get("valid_member_acc", 1.0) == 1.0:
        return False
    found = metrics.Spread(2, row["valid_disagreement"], 1 - row["valid_member_acc"], row["valid_kld"])
    return metrics.judge(found).verdict == metrics.Verdict.COLLAPSED


def words(row: Row) -> str:
    """What happened in an epoch, and what to do."""
    distance = row.get("factor_distance")
    apart = "" if distance is None else f" and their factors are apart by {distance:.0%} of their norm"
    return (
        f"after epoch {row['epoch'] + 1:.0f} the members have collapsed into one predictor (they name"
        f" different classes on {row['valid_disagreement']:.2%} of the validation images{apart}): distil on"
        " perturbed inputs (ODS), take a larger step, or train one network, which costs less"
    )
