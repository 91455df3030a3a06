"""Optimisers, learning rate schedules, and the settings that teachers and students share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BeforeValidator, Field, WrapValidator, model_validator

from polyphony._util.settings import (
    Count,
    CountFromZero,
    NotNegative,
    Positive,
    Real,
    Settings,
    as_table,
    as_tuple,
    table_or_callable,
)

Groups = list[dict[str, Any]]
BelowOne = Annotated[Real, Field(ge=0, lt=1)]

Optimiser = Callable[[Groups, float], torch.optim.Optimizer]
"""(parameter groups with their learning rate and weight decay, momentum) → a PyTorch optimiser."""

Rates = Callable[[int, int, int], float]
"""(epoch counted from 0, epochs, epochs of warm-up) → factor of the base learning rate in this epoch."""


class SGD(Settings):
    """The paper's optimiser: SGD with momentum and coupled weight decay."""

    kind: Literal["sgd"] = Field(default="sgd", repr=False)
    nesterov: bool = False
    """Use Nesterov momentum."""

    def __call__(self, groups: Groups, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=momentum, nesterov=self.nesterov)


class AdamW(Settings):
    """Adam with decoupled weight decay, for transformers; its betas replace the momentum."""

    scale_free: ClassVar[bool] = True  # a gradient times a constant gives the same step
    kind: Literal["adamw"] = Field(default="adamw", repr=False)
    betas: Annotated[tuple[BelowOne, BelowOne], BeforeValidator(as_tuple)] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: Positive = 1e-8
    """Small number in the denominator."""

    def __call__(self, groups: Groups, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, betas=self.betas, eps=self.eps)


class Trapezoid(Settings):
    """The paper's schedule: warm-up, 1 until half of the epochs, linearly to 1 % at nine tenths, then 1 %.

    Epochs count from 1 here, as in the authors' code. The first epoch has no decay, even if it is the last.
    """

    kind: Literal["trapezoid"] = Field(default="trapezoid", repr=False)

    def __call__(self, epoch: int, epochs: int, warm_up: int = 5) -> float:
        decay = 1 - 0.99 * ((epoch + 1) / epochs - 0.5) / 0.4 if epoch else 1.0
        return min(warm_up_factor(epoch, warm_up), max(0.01, min(1.0, decay)))


class Cosine(Settings):
    """Warm-up, then half a cosine that would reach 0 one epoch after the last; for transformers."""

    kind: Literal["cosine"] = Field(default="cosine", repr=False)

    def __call__(self, epoch: int, epochs: int, warm_up: int = 5) -> float:
        first = max(0, warm_up - 1)  # the epoch at which the warm-up reaches 1
        progress = max(0, epoch - first) / max(1, epochs - first)
        return min(warm_up_factor(epoch, warm_up), (1 + math.cos(math.pi * progress)) / 2)


def warm_up_factor(epoch: int, warm_up: int) -> float:
    """Linear from 1 % in the first epoch to 1 in the last epoch of the warm-up, then 1."""
    return 0.01 + 0.99 * epoch / (warm_up - 1) if epoch + 1 < warm_up else 1.0


if TYPE_CHECKING:
    OptimiserSetting = Optimiser
    RatesSetting = Rates
else:  # a table of a built-in kind, the name of one, or in Python any callable
    TABLE = (Field(discriminator="kind"), BeforeValidator(as_table), WrapValidator(table_or_callable))
    OptimiserSetting = Annotated[SGD | AdamW, *TABLE]
    RatesSetting = Annotated[Trapezoid | Cosine, *TABLE]


class Schedule(Settings):
    """Length, batch and learning rate of a training."""

    epochs: Count
    """Number of epochs."""
    batch: Count
    """Images in a batch, over all processes."""
    learning_rate: Positive
    """Highest learning rate."""
    weight_decay: NotNegative = 0.0
    """Weight decay; rank-one factors have none."""
    momentum: BelowOne = 0.9
    """Momentum of SGD."""
    warm_up: CountFromZero = 5
    """Epochs of warm-up, in which the learning rate rises."""
    optimizer: OptimiserSetting = SGD()
    """The optimiser."""
    schedule: RatesSetting = Trapezoid()
    """The learning rate over the epochs."""
    clip: Positive | None = None
    """Clip the gradient of a step to this norm; `separate` clips each network (default: no clipping)."""

    @model_validator(mode="after")
    def _has_momentum_for_nesterov(self) -> Self:
        if getattr(self.optimizer, "nesterov", False) and not self.momentum:
            raise ValueError("Nesterov momentum needs a momentum above 0")
        return self
