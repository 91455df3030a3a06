"""Closed-form models: a linear softmax classifier, whose derivatives can be written down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from polyphony.ensembles import BatchEnsemble, DeepEnsemble

PIXELS, CLASSES = 12, 4  # 3 × 2 × 2


class Linear(nn.Module):
    """z = W x + b on flattened pixels."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.fixture
def linear_ensemble(rng: torch.Generator) -> Callable[..., DeepEnsemble]:
    """A deep ensemble of linear softmax classifiers; `gap` is added to the logits of class 1."""

    def make(members: int, gap: float = 0.0) -> DeepEnsemble:
        networks = []
        for _ in range(members):
            bias = torch.randn(CLASSES, generator=rng, dtype=torch.float64)
            bias[1] += gap
            networks.append(Linear(torch.randn(CLASSES, PIXELS, generator=rng, dtype=torch.float64), bias))
        return DeepEnsemble(networks)

    return make


@pytest.fixture
def images(rng: torch.Generator) -> Tensor:
    """Five images away from the borders of [0, 1], so that small steps are not clamped. [5 3 2 2]"""
    return 0.3 + 0.4 * torch.rand(5, 3, 2, 2, generator=rng, dtype=torch.float64)


@pytest.fixture
def linear_student(rng: torch.Generator) -> BatchEnsemble:
    """Three members that share one linear layer."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES)).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=rng)
    return BatchEnsemble(network, 3, rng=rng)
