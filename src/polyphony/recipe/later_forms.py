"""Students that were published after the paper, and the baseline that all must beat: separate networks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from polyphony._util.settings import Members
from polyphony.distill import DistillFactors
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import (
    BatchEnsemble,
    DeepEnsemble,
    Ensemble,
    LatentFactor,
    LoRAEnsemble,
    Separate,
    Single,
)
from polyphony.nn.counting import FEW, Counting
from polyphony.recipe.foreign import NetworkTable
from polyphony.recipe.form_table import Blueprint, Branch, FactorForm, FormTable, Keep
from polyphony.recipe.libraries import TimmNetwork
from polyphony.recipe.networks import ResNetTable, WideResNetTable
from polyphony.training.fit import Loss

if TYPE_CHECKING:
    from polyphony.recipe.methods import Distillation

Cost = Literal["multiply-adds", "parameters"]
Width = Annotated[int, Field(gt=0, le=4096)]


class SeparateForm(FormTable):
    """M networks that share nothing, each taught by its own teacher."""

    takes_teacher: ClassVar[bool] = False
    words: ClassVar[str] = "separate networks"
    kind: Literal["separate"]
    network: Annotated[
        ResNetTable | WideResNetTable | TimmNetwork | None, Field(default=None, discriminator="kind")
    ]
    """Network of each member (default: the student's network)."""
    width: Width | None = None
    """Width of each member: the student's network with another `width` (WideResNet: `widen`)."""
    match_cost: Cost | None = None
    """Choose the width at which all members together cost as much as the BatchEnsemble of the network."""
    match_branch: Branch = None
    """With `match_cost`: the `branch` of that BatchEnsemble."""

    @model_validator(mode="after")
    def _has_one_size(self) -> SeparateForm:
        if sum(each is not None for each in (self.network, self.width, self.match_cost)) > 1:
            raise ValueError("network, width and match_cost exclude each other: give one of them")
        if self.match_branch is not None and self.match_cost is None:
            raise ValueError("match_branch needs match_cost")
        return self

    def network_table(self, blueprint: Blueprint, members: int) -> NetworkTable:
        if self.width is not None:
            return with_width(blueprint.table, self.width)
        if self.match_cost is not None:
            return matched(blueprint, members, self.match_cost, self.match_branch)
        return self.network or blueprint.table

    def student(self, blueprint: Blueprint, members: int, rng: torch.Generator | None) -> Ensemble:
        own = replace(blueprint, table=self.network_table(blueprint, members))
        return Separate([own.network(rng) for _ in range(members)])


class LowRankForm(FactorForm):
    """Members by matrices of low rank, W + B_j A_j, and classifiers of their own (LoRA-Ensemble)."""

    words: ClassVar[str] = "LoRA-Ensemble"
    kind: Literal["low_rank"]
    rank: Width = 8
    """Rank r of the matrices B_j A_j."""
    layers: Keep = ()
    """Layers to adapt, by name or pattern (default: attention's, else every Linear and Conv2d)."""
    head: str | None = None
    """Name of the classifier, of which every member has its own (default: the last Linear)."""
    freeze: bool | None = None
    """Train A, B and the classifiers alone (default: if the student starts from a teacher)."""

    def from_teacher(self) -> FormTable:
        frozen = self if self.freeze is not None else self.model_copy(update={"freeze": True})
        return super(LowRankForm, frozen).from_teacher()

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        settings = self.model_dump(include={"rank", "layers", "head", "factor_std"})
        return LoRAEnsemble(network, members, freeze=bool(self.freeze), rng=rng, **settings)


class LatentFactorForm(FormTable):
    """One network whose members are draws from a distribution over functions (DLF)."""

    needs_teachers: ClassVar[bool] = True
    trains_as_one: ClassVar[bool] = True
    own_loss: ClassVar[bool] = True
    one_to_one: ClassVar[bool] = False
    takes_teacher: ClassVar[bool] = False
    words: ClassVar[str] = "latent factors (DLF)"
    kind: Literal["dlf"]
    factors: Width = 8
    """Factors q: outputs of the network besides the classes'."""
    draws: Members = 16
    """Members that are drawn to predict."""

    def predictors(self, members: int) -> int:
        return self.draws

    def student(self, blueprint: Blueprint, members: int, rng: torch.Generator | None) -> Ensemble:
        network, counts = blueprint.network(rng, extra=self.factors), self.model_dump(exclude={"kind"})
        return LatentFactor(network, blueprint.classes, members, rng=rng, **counts)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillFactors(
            teachers,
            steps,
            perturb=perturb,
            temperature=method.temperature,
            unlabelled=method.share > 0,
        )


def with_width(table: NetworkTable, width: int) -> NetworkTable:
    """The same network of another width; a ValueError where its table has no such key."""
    return table.replace(**{width_key(table): width})


def width_key(table: NetworkTable) -> str:
    """The key that sets how wide a network is."""
    if not table.width_key:
        raise ValueError(f"the network '{table.label}' has no width to change: give form.network instead")
    return table.width_key


def matched(blueprint: Blueprint, members: int, cost: Cost, branch: Branch) -> NetworkTable:
    """The network of the width at which M of them cost as much as a BatchEnsemble, as nearly as can be."""
    table = blueprint.table
    widest: int = getattr(table, width_key(table))

    def separate(width: int) -> float:
        network = replace(blueprint, table=with_width(table, width)).network()
        return members * cost_of(Single(network), cost, blueprint)

    with torch.device("meta"):
        goal = cost_of(BatchEnsemble(blueprint.network(), members, branch=branch), cost, blueprint)
        above = bisect_left(range(1, widest + 1), goal, key=separate) + 1
        near = {width: separate(width) for width in (above - 1, above) if 1 <= width <= widest}
    return with_width(table, min(near, key=lambda width: abs(log(near[width] / goal))))


def cost_of(student: Ensemble, cost: Cost, blueprint: Blueprint) -> float:
    """What a student costs: parameters, or operations for an image."""
    if cost == "parameters":
        return sum(weight.numel() for weight in student.parameters())
    images = torch.zeros(FEW, *blueprint.shape)
    with torch.no_grad():
        student.eval().ask_all(images)  # the first images of a size decide how it runs
        return Counting().of(lambda: student.ask_all(images)).flops
