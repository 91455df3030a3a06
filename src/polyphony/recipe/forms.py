"""The forms of a student: how it is built, its distillation loss, its model after training."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

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
    """Members that share weights and differ by rank-one factors: the paper's student."""

    words: ClassVar[str] = "BatchEnsemble"
    kind: Literal["batch_ensemble"] = "batch_ensemble"
    member_norm: bool = False
    """Give every member BatchNorm statistics of its own."""
    keep: Keep = ()
    """Names of layers that members share unchanged."""
    branch: Branch = None
    """First layer with members; all layers before it are shared. Or: the share of multiply-adds to share."""

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        std = FACTOR_STD if self.factor_std is None else self.factor_std
        settings = self.model_dump(include={"keep", "member_norm", "branch"})
        return BatchEnsemble(network, members, rng=rng, factor_std=std, **settings)


class MIMOForm(FormTable):
    """One network with separate inputs and outputs for each member."""

    mixes_members: ClassVar[bool] = True
    words: ClassVar[str] = "MIMO"
    kind: Literal["mimo"]
    batch_repetition: Annotated[int, Field(gt=0, le=1000)] = 1
    """How many times a batch holds each image."""
    input_repetition: Share = 0.0
    """Share of the rows in which all members see the same image."""

    def copies(self, members: int) -> int:
        return members

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        repetitions = self.model_dump(include={"batch_repetition", "input_repetition"})
        return MIMO(network, members, **repetitions)


class HydraForm(FactorForm):
    """One shared trunk with a classifier for each member; fresh classifiers without `factor_std`."""

    words: ClassVar[str] = "Hydra"
    kind: Literal["hydra"]
    head: str | None = None
    """Name of the classifier that the heads replace (default: the last layer)."""

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Hydra(network, members, head=self.head, factor_std=self.factor_std, rng=rng)


class SingleForm(FormTable):
    """One network that learns the teachers' mean prediction."""

    trains_as_one: ClassVar[bool] = True
    distils_by: ClassVar[type[Distill]] = DistillMean
    words: ClassVar[str] = "one network"
    kind: Literal["single"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Single(network)


class LatentBEForm(FormTable):
    """Members with rank-one factors during training, merged into one network at the end."""

    needs_teachers: ClassVar[bool] = True  # only their teachers make its members differ
    always_one_pass: ClassVar[bool] = True
    words: ClassVar[str] = "LatentBE, merged"
    kind: Literal["latent_be"]
    keep: Keep = ()
    """Names of layers that members share unchanged."""
    branch: Branch = None
    """First layer with members; all layers before it are shared. Or: the share of multiply-adds to share."""

    def predictors(self, members: int) -> int:
        return 1

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return LatentBE(network, members, keep=self.keep, branch=self.branch)

    def trained(self, student: Ensemble) -> Ensemble:
        return Single(cast(LatentBE, student).merge())


class DistributionForm(FormTable):
    """Base of forms: one network learns the distribution of the teachers' predictions, without labels."""

    needs_teachers: ClassVar[bool] = True
    trains_as_one: ClassVar[bool] = True
    own_loss: ClassVar[bool] = True

    def common(self, method: Distillation, perturb: Perturbation) -> dict[str, Any]:
        """The arguments that all its losses have."""
        return {"perturb": perturb, "temperature": method.temperature, "unlabelled": method.share > 0}


class DirichletForm(DistributionForm):
    """One network that predicts a Dirichlet distribution over the teachers' predictions (EnD²)."""

    words: ClassVar[str] = "Dirichlet (EnD²)"
    kind: Literal["dirichlet"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Dirichlet(network)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillDistribution(teachers, steps, **self.common(method, perturb))


class ProxyDirichletForm(DistributionForm):
    """A Dirichlet student for many classes: its target is a proxy of the teachers, its loss reverse KL."""

    words: ClassVar[str] = "Dirichlet (proxy)"
    kind: Literal["proxy_dirichlet"]

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        return Dirichlet(network, offset=1.0)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillProxy(teachers, **self.common(method, perturb))


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
    """Choose the width at which all members together cost as much as a BatchEnsemble of the network."""
    match_branch: Branch = None
    """With `match_cost`: the `branch` of that BatchEnsemble."""

    @model_validator(mode="after")
    def _has_one_size(self) -> SeparateForm:
        if sum(size is not None for size in (self.network, self.width, self.match_cost)) > 1:
            raise ValueError("network, width and match_cost exclude each other: give one of them")
        if self.match_branch is not None and self.match_cost is None:
            raise ValueError("match_branch needs match_cost")
        return self

    def network_table(self, blueprint: Blueprint, members: int) -> NetworkTable:
        if self.width is not None:
            return with_width(blueprint.table, self.width)
        if self.match_cost is not None:
            return with_matched_cost(blueprint, members, self.match_cost, self.match_branch)
        return self.network or blueprint.table

    def student(self, blueprint: Blueprint, members: int, rng: torch.Generator | None) -> Ensemble:
        member = replace(blueprint, table=self.network_table(blueprint, members))
        return Separate([member.network(rng) for _ in range(members)])


class LowRankForm(FactorForm):
    """Members with weights W + B_j A_j of low rank and separate classifiers (LoRA-Ensemble)."""

    words: ClassVar[str] = "LoRA-Ensemble"
    kind: Literal["low_rank"]
    rank: Width = 8
    """Rank r of the matrices B_j A_j."""
    layers: Keep = ()
    """Layers to adapt, by name or pattern (default: attention's, else every Linear and Conv2d)."""
    head: str | None = None
    """Name of the classifier; every member has its own (default: the last Linear)."""
    freeze: bool | None = None
    """Train only A, B and the classifiers (default: if the student starts from a teacher)."""

    def from_teacher(self) -> FormTable:
        form = self if self.freeze is not None else self.model_copy(update={"freeze": True})
        return super(LowRankForm, form).from_teacher()

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        settings = self.model_dump(include={"rank", "layers", "head", "factor_std"})
        return LoRAEnsemble(network, members, freeze=bool(self.freeze), rng=rng, **settings)


class LatentFactorForm(DistributionForm):
    """One network that predicts a distribution over functions; its members are draws from it (DLF)."""

    one_to_one: ClassVar[bool] = False
    fewest_teachers: ClassVar[int] = 2
    takes_teacher: ClassVar[bool] = False
    words: ClassVar[str] = "latent factors (DLF)"
    kind: Literal["dlf"]
    factors: Width = 8
    """Number of factors q: the network has so many outputs besides one per class."""
    draws: Members = 16
    """Number of members to draw for a prediction."""

    def predictors(self, members: int) -> int:
        return self.draws

    def student(self, blueprint: Blueprint, members: int, rng: torch.Generator | None) -> Ensemble:
        network, counts = blueprint.network(rng, extra=self.factors), self.model_dump(exclude={"kind"})
        return LatentFactor(network, blueprint.classes, members, rng=rng, **counts)

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        return DistillFactors(teachers, steps, **self.common(method, perturb))


class PythonForm(PythonTable, FormTable):
    """The user's form: `name` is a `FormTable` or a function that returns one; `args` are its settings."""

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
    """The same network with another width; raises a ValueError if its width cannot be set."""
    return table.replace(**{width_key(table): width})


def width_key(table: NetworkTable) -> str:
    """The key of a network's width; raises a ValueError if it has none."""
    if not table.width_key:
        raise ValueError(f"the network '{table.label}' has no width to change: give form.network instead")
    return table.width_key


def with_matched_cost(blueprint: Blueprint, members: int, cost: Cost, branch: Branch) -> NetworkTable:
    """The network with the width at which M copies cost nearly as much as the BatchEnsemble."""
    table = blueprint.table
    widest: int = getattr(table, width_key(table))

    def cost_of_copies(width: int) -> float:
        network = replace(blueprint, table=with_width(table, width)).network()
        return members * cost_of(Single(network), cost, blueprint)

    with torch.device("meta"):
        goal = cost_of(BatchEnsemble(blueprint.network(), members, branch=branch), cost, blueprint)
        above = bisect_left(range(1, widest + 1), goal, key=cost_of_copies) + 1
        costs = {width: cost_of_copies(width) for width in (above - 1, above) if 1 <= width <= widest}
    return with_width(table, min(costs, key=lambda width: abs(log(costs[width] / goal))))


def cost_of(student: Ensemble, cost: Cost, blueprint: Blueprint) -> float:
    """The number of a student's parameters, or of its floating-point operations on a few images."""
    if cost == "parameters":
        return sum(weight.numel() for weight in student.parameters())
    images = torch.zeros(FEW, *blueprint.shape)
    with torch.no_grad():
        student.eval().ask_all(images)  # the first images of a size decide how members run: not counted
        return Counting().of(lambda: student.ask_all(images)).flops
