"""How weights move: optimisers, and the share of the learning rate in each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Groups = list[dict[str, Any]]


class Optimiser(Protocol):
    """Parameter groups, each with its rate and weight decay → an optimiser of PyTorch's."""

    def __call__(self, groups: Groups) -> torch.optim.Optimizer:
        """The optimiser of these parameters."""


@dataclass(frozen=True)
class SGD:
    """The paper's: momentum, coupled weight decay."""

    momentum: float = 0.9
    nesterov: bool = False

    def __call__(self, groups: Groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, as transformers are trained."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __call__(self, groups: Groups) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, betas=self.betas, eps=self.eps)


Rates = Callable[[int, int, int], float]
"""Epoch (counted from 0), epochs, epochs of warm-up → the share of the base learning rate in that epoch."""


def rising(epoch: int, warm_up: int) -> float:
    """From 1 % in the first epoch linearly to 1 in the last of the warm-up."""
    return 0.01 + 0.99 * epoch / (warm_up - 1) if epoch + 1 < warm_up else 1.0


def trapezoid(epoch: int, epochs: int, warm_up: int = 5) -> float:
    """The paper's: the warm-up, 1 until half of the epochs, linearly to 1 % at nine tenths, then 1 %.

    Points in time count from 1, as in the authors' code. The first epoch does not fall, even where it is the
    last.
    """
    falling = 1 - 0.99 * ((epoch + 1) / epochs - 0.5) / 0.4 if epoch else 1.0
    return min(rising(epoch, warm_up), max(0.01, min(1.0, falling)))


def cosine(epoch: int, epochs: int, warm_up: int = 5) -> float:
    """The warm-up, then half a cosine, which would reach 0 one epoch after the last."""
    first = max(0, warm_up - 1)  # the epoch at which the warm-up has reached 1
    fallen = max(0, epoch - first) / max(1, epochs - first)
    return min(rising(epoch, warm_up), (1 + math.cos(math.pi * fallen)) / 2)
