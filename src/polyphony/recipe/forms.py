"""The forms a student takes: how it is built, what it learns from teachers, what predicts in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from pydantic import BeforeValidator, Field
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
    Single,
)
from polyphony.nn import FACTOR_STD
from polyphony.recipe.form_table import Blueprint, Branch, FactorForm, FormTable, Keep, Width
from polyphony.recipe.python import PythonTable
from polyphony.recipe.separate import SeparateForm
from polyphony.recipe.table import RecipeError
from polyphony.training.fit import Loss

if TYPE_CHECKING:
    from polyphony.recipe.methods import Distillation


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
        return DistillProxy(teachers, perturb, method.temperature, method.share > 0)


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
    """One of the user's own: the name of a `FormTable`, whose keys are its `args`."""

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
