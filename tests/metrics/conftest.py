"""Predictions every score is tried on: random, saturated and degenerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from torch import Tensor


class Case(NamedTuple):
    logits: Tensor
    labels: Tensor

    def member_log_probs(self) -> np.ndarray:
        """Scipy's word on the members, [m n k]."""
        with np.errstate(divide="ignore"):
            return log_softmax(self.logits.double().numpy(), axis=-1)

    def log_probs(self) -> np.ndarray:
        """Scipy's word on the ensemble, [n k]."""
        with np.errstate(divide="ignore"):
            return np.minimum(logsumexp(self.member_log_probs(), axis=0) - np.log(len(self.logits)), 0.0)


Draw = Callable[..., Case]


def draw(
    seed: int,
    members: int = 4,
    examples: int = 120,
    classes: int = 10,
    scale: float = 2.0,
    known: float = 0.6,
) -> Case:
    """Members that share a part of their logits; labels that follow it on a share `known` of the examples."""
    rng = torch.Generator().manual_seed(seed)
    shared = torch.randn(examples, classes, generator=rng)
    logits = scale * (shared + torch.randn(members, examples, classes, generator=rng) / 2)
    labels = torch.randint(classes, (examples,), generator=rng)
    follows = torch.rand(examples, generator=rng) < known
    return Case(logits, torch.where(follows, shared.argmax(-1), labels))


def _cases() -> dict[str, Case]:
    plain = draw(0)
    rng = torch.Generator().manual_seed(1)
    votes = torch.randint(-1, 2, plain.logits.shape, generator=rng).float()
    mean = plain.logits.softmax(-1).mean(0)
    return {
        "random": plain,
        "two classes": draw(2, classes=2),
        "thousand classes": draw(3, examples=25, classes=1000, scale=4.0),
        "one member": draw(4, members=1),
        "three members": draw(5, members=3),
        "one example": draw(6, examples=1),
        "saturated": Case(1000 * votes, plain.labels),
        "very large": Case(1e4 * plain.logits, plain.labels),
        "impossible classes": Case(plain.logits.masked_fill(votes == 1, -torch.inf), plain.labels),
        "certain": Case(
            torch.where(votes.argmax(-1)[..., None] == torch.arange(10), 0.0, -torch.inf), plain.labels
        ),
        "ties": Case(votes, plain.labels),
        "uniform": Case(torch.zeros(4, 30, 10), plain.labels[:30]),
        "all wrong": Case(plain.logits, mean.argmin(-1)),
        "all right": Case(plain.logits, mean.argmax(-1)),
        "one class seen": Case(plain.logits, torch.full((120,), 3)),
        "one class predicted": Case(plain.logits + 50 * (torch.arange(10) == 3), plain.labels),
        "identical members": Case(plain.logits[:1].expand(4, -1, -1), plain.labels),
        "half precision": Case(plain.logits.half(), plain.labels.to(torch.uint8)),
    }


CASES = _cases()


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """By name; a test goes through all of them and says in which it fails."""
    return CASES


@pytest.fixture(scope="session")
def draw_case() -> Draw:
    return draw
