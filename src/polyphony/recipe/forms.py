"""The forms of a student: how it is built, its loss with teachers, what predicts after training."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from polyphony._util.settings import Members, Share, as_table
from polyphony.distill import Distill, DistillDistribution, DistillFactors, DistillMean, DistillProxy
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import (
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Dirichlet,
    Ensemble,
    Hydra,
    LatentBE,
    LatentFactor,
    LoRAEnsemble,
    Separate,
    Single,
)
from polyphony.nn import FACTOR_STD
from polyphony.nn.counting import FEW, Counting
from polyphony.recipe.foreign import NetworkTable
from polyphony.recipe.form_table import Blueprint, Branch, FactorForm, FormTable, Keep, Width
from polyphony.recipe.networks import ResNetTable, TimmNetwork, WideResNetTable
from polyphony.recipe.python import PythonTable
from polyphony.recipe.table import RecipeError
from polyphony.training.fit import Loss

if TYPE_CHECKING:
    from polyphony.recipe.methods import Distillation

Cost = Literal["multiply-adds", "parameters"]


class BatchEnsembleForm(FactorForm):
    """Members by rank-one factors, the paper's student."""

    words: ClassVar[str] = "BatchEnsemble"
    kind: Literal["batch_ensemble"] = "batch_ensemble"
    member_norm: bool = False
    """Give every member BatchNorm statistics of its own."""
    keep: Keep = ()
    """Names of layers that members share unchanged."""
    branch: Branch = None
    """Layer before which everything is shared and runs once; or the share of the multiply-adds to share."""

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        std = FACTOR_STD if self.factor_std is None else self.factor_std
        settings = self.model_dump(include={"keep", "member_norm", "branch"})
        return BatchEnsemble(network, members, rng=rng, factor_std=std, **settings)


class MIMOForm(FormTable):
    """Members by inputs and outputs of their own in one network."""

    mixes_members: ClassVar[bool] = True
    words: ClassVar[str] = "MIMO"
    kind: Literal["mimo"]
    batch_repetition: Annotated[int, Field(gt=0, le=1000)] = 1
    """How often each image is in a batch."""
    input_repetition: Share = 0.0
    """Share of the rows in which all members see the same image."""

    def copies(self, members: int) -> int:
        return members

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        repetitions = self.model_dump(include={"batch_repetition", "input_repetition"})
        return MIMO(network, members, **repetitions)


class HydraForm(FactorForm):
    """Members by classifiers of their own on one trunk; fresh ones without a `factor_std`."""

    words: ClassVar[str] = "Hydra"
    kind: Literal["hydra"]
    head: str | None = None
    """Name of the classifier that the heads replace (default: the last layer)."""

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Hydra(network, members, head=self.head, factor_std=self.factor_std, rng=rng)


class SingleForm(FormTable):
    """One network, which learns the teachers' mean."""

    trains_as_one: ClassVar[bool] = True
    distils_by: ClassVar[type[Distill]] = DistillMean
    words: ClassVar[str] = "one network"
    kind: Literal["single"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Single(network)


class LatentBEForm(FormTable):
    """Rank-one factors while it trains, averaged into one network at the end."""

    needs_teachers: ClassVar[bool] = True  # nothing else tells its members apart
    words: ClassVar[str] = "LatentBE, merged"
    kind: Literal["latent_be"]
    keep: Keep = ()
    """Names of layers that members share unchanged."""
    branch: Branch = None
    """Layer before which everything is shared and runs once; or the share of the multiply-adds to share."""

    def predictors(self, members: int) -> int:
        return 1

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return LatentBE(network, members, keep=self.keep, branch=self.branch)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return super().loss(teachers, method.replace(passes="one"), perturb, steps)

    def trained(self, student: Ensemble) -> Ensemble:
        return Single(cast(LatentBE, student).merge())


class DistributionForm(FormTable):
    """One network that learns the distribution of the teachers' predictions, by a loss without labels."""

    needs_teachers: ClassVar[bool] = True
    trains_as_one: ClassVar[bool] = True
    own_loss: ClassVar[bool] = True


class DirichletForm(DistributionForm):
    """One network that gives a distribution over the teachers' predictions (EnD²)."""

    words: ClassVar[str] = "Dirichlet (EnD²)"
    kind: Literal["dirichlet"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Dirichlet(network)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillDistribution(
            teachers, steps, perturb=perturb, temperature=method.temperature, unlabelled=method.share > 0
        )


class ProxyDirichletForm(DistributionForm):
    """The same, towards a proxy of the teachers' distribution by reverse KL: for many classes."""

    words: ClassVar[str] = "Dirichlet (proxy)"
    kind: Literal["proxy_dirichlet"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Dirichlet(network, offset=1.0)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillProxy(
            teachers, perturb=perturb, temperature=method.temperature, unlabelled=method.share > 0
        )


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


class LowRankForm(FactorForm):
    """Members by matrices of low rank, W + B_j A_j, and classifiers of their own (LoRA-Ensemble)."""

    words: ClassVar[str] = "LoRA-Ensemble"
    kind: Literal["low_rank"]
    rank: Width = 8
    """Rank r of the matrices B_j A_j."""
    layers: Keep = ()
    """Layers to adapt, by name or pattern (default: attention's, else every Linear and Conv2d)."""
    head: str | None = None
    """Name of the classifier; every member has its own (default: the last Linear)."""
    freeze: bool | None = None
    """Train A, B and the classifiers alone (default: if the student starts from a teacher)."""

    def from_teacher(self) -> FormTable:
        frozen = self if self.freeze is not None else self.model_copy(update={"freeze": True})
        return super(LowRankForm, frozen).from_teacher()

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        settings = self.model_dump(include={"rank", "layers", "head", "factor_std"})
        return LoRAEnsemble(network, members, freeze=bool(self.freeze), rng=rng, **settings)


class LatentFactorForm(DistributionForm):
    """One network whose members are draws from a distribution over functions (DLF)."""

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
            teachers, steps, perturb=perturb, temperature=method.temperature, unlabelled=method.share > 0
        )


class PythonForm(PythonTable, FormTable):
    """The user's form: the name of a `FormTable`; `args` are its settings."""

    kind: Literal["python"]

    def resolved(self) -> FormTable:
        form = self.make()
        if not isinstance(form, FormTable):
            raise RecipeError(f"'{self.name}' makes a {type(form).__name__}, not a FormTable")
        return form


Form = Annotated[
    BatchEnsembleForm
    | MIMOForm
    | HydraForm
    | SingleForm
    | LatentBEForm
    | DirichletForm
    | ProxyDirichletForm
    | SeparateForm
    | LowRankForm
    | LatentFactorForm
    | PythonForm,
    Field(discriminator="kind"),
    BeforeValidator(as_table),
]


def with_width(table: NetworkTable, width: int) -> NetworkTable:
    """The same network of another width; a ValueError if it has no such key."""
    return table.replace(**{width_key(table): width})


def width_key(table: NetworkTable) -> str:
    """The key that sets how wide a network is."""
    if not table.width_key:
        raise ValueError(f"the network '{table.label}' has no width to change: give form.network instead")
    return table.width_key


def matched(blueprint: Blueprint, members: int, cost: Cost, branch: Branch) -> NetworkTable:
    """The network in the width whose M copies come nearest to the cost of the BatchEnsemble."""
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
