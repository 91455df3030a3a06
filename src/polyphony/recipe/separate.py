"""Separate networks: the baseline that every student must beat."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import log
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from polyphony.ensembles import BatchEnsemble, Ensemble, Separate, Single
from polyphony.nn.counting import FEW, Counting
from polyphony.recipe.foreign import NetworkTable
from polyphony.recipe.form_table import Blueprint, Branch, FormTable, Width
from polyphony.recipe.libraries import TimmNetwork
from polyphony.recipe.networks import ResNetTable, WideResNetTable

Cost = Literal["multiply-adds", "parameters"]


class SeparateForm(FormTable):
    """M networks that share nothing; network j learns from teacher j."""

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


def with_width(table: NetworkTable, width: int) -> NetworkTable:
    """The same network of another width; a ValueError if it has no such key."""
    return table.replace(**{width_key(table): width})


def width_key(table: NetworkTable) -> str:
    """The key that sets how wide a network is."""
    if not table.width_key:
        raise ValueError(f"the network '{table.label}' has no width to change: give form.network instead")
    return table.width_key


def matched(blueprint: Blueprint, members: int, cost: Cost, branch: Branch) -> NetworkTable:
    """The network whose width brings the cost of M of them nearest to that of the BatchEnsemble."""
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
    """Parameters of a student, or its operations for an image."""
    if cost == "parameters":
        return sum(weight.numel() for weight in student.parameters())
    images = torch.zeros(FEW, *blueprint.shape)
    with torch.no_grad():
        student.eval().ask_all(images)  # the first images of a size decide how it runs
        return Counting().of(lambda: student.ask_all(images)).flops
