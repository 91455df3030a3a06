"""How closely a student follows its teachers: in their disagreement, and member j in teacher j."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fidelity:
    """A student compared with its teachers on the same images, uncalibrated, in nats; None if undefined.

    Divergences are those of `Predictions.divergence`, one for each image: the mean KL of two members, or of
    two draws from a Dirichlet. `rank_correlation` and `distance` are None for a student that does not vary,
    `own_kld` and `other_kld` for a student without a member for each teacher.
    """

    rank_correlation: float | None
    """Spearman's ρ over images between the student's divergence and the teachers'; 1 if both disagree most
    on the same images. None if one of the two is the same on every image."""
    distance: float | None
    """Mean over images of |student's divergence − teachers'|; 0 at best."""
    own_kld: float | None
    """KL(T_j ‖ S_j), mean over members j and images: how far a member is from its own teacher."""
    other_kld: float | None
    """KL(T_i ‖ S_j), mean over i ≠ j and images: how far a member is from the other teachers."""

    @property
    def voice(self) -> float | None:
        """`other_kld` − `own_kld`: above 0 if member j follows teacher j, 0 if it follows no teacher."""
        return None if self.own_kld is None or self.other_kld is None else self.other_kld - self.own_kld


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Spearman's ρ; ties share their mean rank; None if one side is constant. [n], [n] → scalar"""
    ranks = torch.stack([_ranks(first), _ranks(second)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    (first_square, product), (_, second_square) = ranks @ ranks.T
    squares = first_square * second_square
    return float(product / squares.sqrt()) if squares > 0 else None


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value up to a constant; ties share their mean rank. [n] → [n]"""
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    places: Tensor = count.cumsum(0) - count.double() / 2
    return places[group]


def voices(log_probs: Tensor, teachers: Tensor) -> tuple[float, float]:
    """Mean KL(T_j ‖ S_j), and mean KL(T_i ‖ S_j) over i ≠ j, of log-probabilities [m n k], [m n k]."""
    probs, members = teachers.exp(), len(log_probs)
    terms = ((probs * (teachers - member)).where(probs > 0, 0.0) for member in log_probs)
    klds = torch.stack([term.sum(-1).mean(-1) for term in terms])  # [j i]
    own = float(klds.trace())
    return own / members, (float(klds.sum()) - own) / (members * (members - 1))
