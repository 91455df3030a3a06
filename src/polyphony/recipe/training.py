"""How something is trained: the tables of optimiser, learning rates and augmentation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from polyphony._util.settings import Count
from polyphony.data import Augmentation
from polyphony.nn.ways import AUTO
from polyphony.recipe.table import Table, as_table, as_tuple
from polyphony.training.fit import Plan
from polyphony.training.optimise import SGD, AdamW, Optimiser, Rates, cosine, trapezoid

Fraction = Annotated[float, Field(ge=0, lt=1)]


class SGDTable(Table):
    """Momentum is the schedule's."""

    kind: Literal["sgd"] = "sgd"
    nesterov: bool = False

    def build(self, momentum: float) -> Optimiser:
        """The optimiser itself."""
        return SGD(momentum, self.nesterov)


class AdamWTable(Table):
    """For transformers."""

    kind: Literal["adamw"]
    betas: Annotated[tuple[Fraction, Fraction], BeforeValidator(as_tuple)] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8

    def build(self, momentum: float) -> Optimiser:
        """The optimiser itself, which has betas in the place of a momentum."""
        return AdamW(self.betas, self.eps)


class TrapezoidTable(Table):
    """The paper's: held to half of the epochs, linear to nine tenths."""

    kind: Literal["trapezoid"] = "trapezoid"
    rates: ClassVar[Rates] = staticmethod(trapezoid)


class CosineTable(Table):
    """For transformers."""

    kind: Literal["cosine"]
    rates: ClassVar[Rates] = staticmethod(cosine)


Optimizer = Annotated[SGDTable | AdamWTable, Field(discriminator="kind"), BeforeValidator(as_table)]
RateTable = Annotated[TrapezoidTable | CosineTable, Field(discriminator="kind"), BeforeValidator(as_table)]


class Schedule(Table):
    """How something is trained."""

    epochs: Count
    batch: Count
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    momentum: Fraction = 0.9
    warm_up: NonNegativeInt = 5
    optimizer: Optimizer = SGDTable()
    schedule: RateTable = TrapezoidTable()  # of the learning rate over the epochs
    clip: PositiveFloat | None = None  # the longest that the gradient of a step may be

    def plan(
        self,
        augment: Augmentation,
        precision: str,
        deterministic: bool = False,
        way: str = AUTO,
        compiled: bool = False,
    ) -> Plan:
        """The plan that `fit` follows."""
        same = {"epochs", "batch", "learning_rate", "weight_decay", "warm_up", "clip"}
        return Plan(
            **{name: getattr(self, name) for name in same},
            optimiser=self.optimizer.build(self.momentum),
            schedule=type(self.schedule).rates,
            augment=augment,
            precision=getattr(torch, precision, torch.float32),  # TF32 is no type of its own
            tf32=precision == "tf32",
            deterministic=deterministic,
            way=way,
            compile=compiled,
        )
