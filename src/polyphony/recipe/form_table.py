"""The base class of all forms of a student, and the blueprint of their networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat
from torch import Tensor, nn

from polyphony._util.settings import Settings, as_tuple
from polyphony.distill import Distill
from polyphony.distill.perturb import Perturbation
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.nn import FACTOR_STD, Size
from polyphony.nn.conversion import Order
from polyphony.nn.members import set_proven
from polyphony.recipe.foreign import NetworkTable
from polyphony.training.fit import Loss

if TYPE_CHECKING:
    from polyphony.recipe.methods import Distillation


Keep = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]  # layers that members share


def as_branch(value: object) -> object:
    """Returns the name of a layer, a number above 0 and below 1, or None; raises a ValueError otherwise."""
    is_share = isinstance(value, float) and 0 < value < 1
    if value is None or is_share or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of a layer, or a number above 0 and below 1")


Branch = Annotated[str | float | None, BeforeValidator(as_branch)]  # the first layer with members
Width = Annotated[int, Field(gt=0, le=4096)]


@dataclass(frozen=True)
class Blueprint:
    """Builds a student's networks: the network's table, sizes of the data, perhaps a teacher's weights."""

    table: NetworkTable
    classes: int
    shape: Size  # of an image: channels, height, width
    statistics: tuple[Sequence[float], Sequence[float]] | None = None  # mean and std, if not in the weights
    weights: dict[str, Tensor] | None = None  # of a teacher, to start from
    proven: Order | None = None  # the result of an earlier conversion check: how its members run

    def network(self, rng: torch.Generator | None = None, copies: int = 1, extra: int = 0) -> nn.Module:
        """A network with inputs and outputs for `copies` members, and `extra` outputs."""
        network = self.table.fitted(self.classes + extra, self.shape, rng, copies)
        if self.statistics is not None:
            self.table.normalize(network, *(copies * tuple(values) for values in self.statistics))
        if self.weights is not None:
            network.load_state_dict(self.weights)
        if self.proven is not None:
            set_proven(network, self.proven, self.shape)
        return network


class FormTable(Settings):
    """The base of all forms. By default member j learns from teacher j, and all members predict."""

    needs_teachers: ClassVar[bool] = False  # it cannot learn from labels alone
    trains_as_one: ClassVar[bool] = False  # it has one member in training
    own_loss: ClassVar[bool] = False  # its loss has temperatures of its own, and no α
    always_one_pass: ClassVar[bool] = False  # one pass of the student in a step, whatever `passes` says
    mixes_members: ClassVar[bool] = False  # a member's answer depends on the inputs of the others
    one_to_one: ClassVar[bool] = True  # member j learns from teacher j, if there are as many
    fewest_teachers: ClassVar[int] = 1
    takes_teacher: ClassVar[bool] = True  # it may start from a teacher's weights
    distils_by: ClassVar[type[Distill]] = Distill  # its loss with teachers
    words: ClassVar[str] = ""  # its name in tables of a report (default: its label)

    def resolved(self) -> FormTable:
        """The form itself, or the form that the user's module makes."""
        return self

    def from_teacher(self) -> FormTable:
        """The form of a student that starts from a teacher's weights."""
        return self

    def copies(self, members: int) -> int:
        """The number of members that the network has inputs and outputs for."""
        return 1

    def predictors(self, members: int) -> int:
        """The number of members that predict after training."""
        return 1 if self.trains_as_one else members

    def network_table(self, blueprint: Blueprint, members: int) -> NetworkTable:
        """The table of the student's network: the blueprint's, unless the form chooses another."""
        return blueprint.table

    def student(self, blueprint: Blueprint, members: int, rng: torch.Generator | None) -> Ensemble:
        """The student before training."""
        return self.build(blueprint.network(rng, self.copies(members)), members, rng)

    def build(self, network: nn.Module, members: int, rng: torch.Generator | None) -> Ensemble:
        """The student from a fresh network. Most forms override only this."""
        raise NotImplementedError

    def loss(self, teachers: DeepEnsemble, method: Distillation, perturb: Perturbation, steps: int) -> Loss:
        """The loss of a training with teachers that has `steps` steps."""
        passes = "one" if self.always_one_pass else method.passes
        return self.distils_by(teachers, method.alpha, method.temperature, perturb, passes, method.share > 0)

    def trained(self, student: Ensemble) -> Ensemble:
        """The model that predicts after training."""
        return student


class FactorForm(FormTable):
    """A form whose members start as a network's weights times factors N(1, factor_std²)."""

    factor_std: NonNegativeFloat | None = None
    """Spread of the factors N(1, factor_std²) (default: 0.5; Hydra: fresh heads)."""

    def from_teacher(self) -> FormTable:
        return self.model_copy(update={"factor_std": FACTOR_STD}) if self.factor_std is None else self
