"""A killed training of any student resumes to exactly the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from polyphony.data import Augmentation, Split
from polyphony.distill import Distill, DistillFactors
from polyphony.distill.perturb import ODS, Chain, Diversify, Mixup
from polyphony.ensembles import (
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Ensemble,
    Hydra,
    LatentBE,
    LatentFactor,
    LoRAEnsemble,
    Separate,
)
from polyphony.training.fit import Loss, Plan, fit

MEMBERS = 2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int, members: int = 1, extra: int = 0) -> nn.Module:
    """A small network with all kinds of state: a convolution, BatchNorm, a linear layer with a bias."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Conv2d(members, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(54, members * 3 + extra))


TEACHERS = DeepEnsemble([network(seed) for seed in (1, 2)])
STUDENTS: dict[str, Callable[[], Ensemble]] = {
    "mimo": lambda: MIMO(network(3, MEMBERS), MEMBERS, batch_repetition=2),
    "hydra": lambda: Hydra(network(3), MEMBERS, rng=seeded(4)),
    "branch": lambda: BatchEnsemble(network(3), MEMBERS, rng=seeded(4), branch="2"),
    "latent": lambda: LatentBE(network(3), MEMBERS),
    "low_rank": lambda: LoRAEnsemble(network(3), MEMBERS, rng=seeded(4), freeze=True),
    "separate": lambda: Separate([network(3), network(4)]),
}
STUDENTS["dlf"] = lambda: LatentFactor(network(3, extra=2), 3, MEMBERS, factors=2, draws=4)
LOSSES: dict[str, Callable[[Ensemble], Loss]] = {
    "mixup+ods": lambda student: Distill(TEACHERS, perturb=Chain((Mixup(), ODS()))),
    "factors": lambda student: DistillFactors(TEACHERS, 12, 0.4, perturb=ODS()),
    "diversify": lambda student: Distill(TEACHERS, 1.0, perturb=Diversify(), passes="one"),
}


class KilledError(Exception):
    """Simulates a power failure."""


class InMemory:
    """A checkpoint in memory that may end the training after some saves."""

    def __init__(self, saves: int = 99, last: dict[str, Any] | None = None) -> None:
        self.saves, self.last = saves, last

    def load(self) -> dict[str, Any] | None:
        return copy.deepcopy(self.last)

    def save(self, state: dict[str, Any]) -> None:
        self.last, self.saves = copy.deepcopy(state), self.saves - 1
        if self.saves == 0:
            raise KilledError


def run(kind: str, loss: str, seed: int, checkpoint: InMemory) -> dict[str, torch.Tensor]:
    images = torch.randint(256, (48, 1, 5, 5), generator=seeded(5)).to(torch.uint8)
    data = Split(images, torch.randint(3, (48,), generator=seeded(6)))
    student = STUDENTS[kind]()
    plan = Plan(epochs=4, batch=16, learning_rate=0.05, warm_up=1, augment=Augmentation(1, True))
    fit(student, LOSSES[loss](student), data, data, plan, seeded(seed), checkpoint=checkpoint)
    return student.state_dict()


@pytest.mark.parametrize(
    ("kind", "loss"),
    [each for each in product(STUDENTS, LOSSES) if (each[0] == "dlf") == (each[1] == "factors")],
)
def test_a_killed_training_ends_with_the_same_bits(kind, loss):
    uninterrupted, killed = run(kind, loss, 7, InMemory()), InMemory(saves=2)
    with pytest.raises(KilledError):
        run(kind, loss, 7, killed)
    resumed = run(
        kind, loss, 8, InMemory(last=killed.last)
    )  # the generator's state comes from the checkpoint
    assert all(torch.equal(value, resumed[name]) for name, value in uninterrupted.items())
