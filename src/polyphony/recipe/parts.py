"""The tables a recipe is made of, and the components they stand for."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from polyphony.data import Augmentation, Options
from polyphony.nn import ResNet, WideResNet, resnet, wide_resnet
from polyphony.perturb import ODS, Adversarial, Clean, Gaussian, Perturbation
from polyphony.train import Plan


def as_step_size(value: object) -> object:
    """A number, or a fraction such as "1/255", above zero; or "match"."""
    if value == "match":
        return value
    try:
        number = float(Fraction(value)) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError, ZeroDivisionError):
        number = -1.0
    if isinstance(value, bool) or number <= 0:
        raise ValueError('must be a number or a fraction above 0, such as "1/255", or "match"')
    return number


StepSize = Annotated[float | Literal["match"], BeforeValidator(as_step_size)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_.-]*$")]

PERTURBATIONS: dict[str, Callable[[float], Perturbation]] = {
    "clean": lambda step_size: Clean(),
    "gaussian": Gaussian,
    "ods": ODS,
    "confods": partial(ODS, scale_by_confidence=True),
    "adversarial": Adversarial,
}


class Part(BaseModel):
    """A table of a recipe: fixed once read, and without keys nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Crop(Part):
    """Random crop after zero padding, random horizontal flip."""

    pad: NonNegativeInt = 4
    flip: bool = True

    def build(self) -> Augmentation:
        """The augmentation itself."""
        return Augmentation(self.pad, self.flip)


class Data(Part):
    """A data set by name or path, how much of it, and how it is augmented."""

    name: str
    per_class: PositiveInt | None = None
    limit: PositiveInt | None = None
    resolution: PositiveInt | None = None
    valid: PositiveInt | None = None
    test: PositiveInt | None = None
    seed: int = 0
    coarse: bool = False
    augment: Crop = Crop()

    def options(self) -> Options:
        """What the reader is asked for."""
        return Options(**self.model_dump(exclude={"name", "augment"}))


class ResNetPart(Part):
    """ResNet of depth 6n + 2."""

    kind: Literal["resnet"]
    depth: int
    width: PositiveInt = 16

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if depth < 8 or (depth - 2) % 6:
            raise ValueError("must be 6n + 2 (8, 14, 20, 32, …) for a ResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> ResNet:
        """The network with fresh weights."""
        return resnet(self.depth, classes, channels, self.width, rng)


class WideResNetPart(Part):
    """WideResNet of depth 6n + 4."""

    kind: Literal["wide_resnet"]
    depth: int
    widen: PositiveInt

    @field_validator("depth")
    @classmethod
    def _has_whole_stages(cls, depth: int) -> int:
        if depth < 10 or (depth - 4) % 6:
            raise ValueError("must be 6n + 4 (10, 16, 22, 28, …) for a WideResNet")
        return depth

    def build(self, classes: int, channels: int, rng: torch.Generator | None = None) -> WideResNet:
        """The network with fresh weights."""
        return wide_resnet(self.depth, self.widen, classes, channels, rng)


Network = Annotated[ResNetPart | WideResNetPart, Field(discriminator="kind")]


class Schedule(Part):
    """How something is trained."""

    epochs: PositiveInt
    batch: PositiveInt
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    warm_up: NonNegativeInt = 5

    def plan(self, augment: Crop, precision: str) -> Plan:
        """The plan that `fit` follows."""
        settings = {name: getattr(self, name) for name in Schedule.model_fields}
        return Plan(**settings, augment=augment.build(), precision=getattr(torch, precision))


class Teachers(Schedule):
    """The deep ensemble: `members` networks, and extra ones that only the DEE curve needs."""

    network: Network
    extra: NonNegativeInt = 0


class Student(Schedule):
    """The compact network, and what all methods have in common."""

    network: Network | None = None  # the teachers' unless it is given
    member_norm: bool = False
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.9
    temperature: PositiveFloat = 4.0
    step_size: StepSize = 1 / 255
    match_share: PositiveFloat = 1.0  # of held-out disagreement, for step_size = "match"


class Method(Part):
    """One way to train the student; what it does not say is as in `student`. No perturb: from scratch."""

    perturb: Literal["clean", "gaussian", "ods", "confods", "adversarial"] | None = None
    source: Literal["extra"] | None = None  # ODS directions from an extra teacher, not from those learnt from
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    temperature: PositiveFloat | None = None
    step_size: StepSize | None = None


class Distillation(Part):
    """A method with teachers, all its settings filled in."""

    perturb: str
    source: str | None = None
    alpha: float
    temperature: float
    step_size: float | Literal["match"]

    def perturbation(self, step_size: float) -> Perturbation:
        """The perturbation itself."""
        return PERTURBATIONS[self.perturb](step_size)


class Recipe(Part):
    """One experiment."""

    name: Name
    members: PositiveInt
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    precision: Literal["float32", "bfloat16"] = "float32"
    threads: PositiveInt | None = None  # a process; by default one for small images, else all cores
    data: Data
    teachers: Teachers
    student: Student
    methods: Annotated[dict[Name, Method], Field(min_length=1)]

    @field_validator("seeds")
    @classmethod
    def _are_different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("must be different from each other")
        return seeds

    def distillation(self, name: str) -> Distillation | None:
        """A method's settings, from `student` where it leaves them open; nothing for one from scratch."""
        shared = self.student.model_dump(include={"alpha", "temperature", "step_size"})
        own = self.methods[name].model_dump(exclude_none=True)
        if own.get("perturb") == "clean":
            own["step_size"] = 0.0  # it takes no step, so a change of step size does not concern it
        return Distillation(**shared | own) if "perturb" in own else None

    @model_validator(mode="after")
    def _has_possible_methods(self) -> Recipe:
        for name, method in self.methods.items():
            if name in ("teachers", "external"):
                raise ValueError(f"methods.{name}: that name is taken; choose another")
            if method.source and method.perturb not in ("ods", "confods"):
                raise ValueError(f"methods.{name}.source needs perturb = 'ods' or 'confods'")
            if method.source and not self.teachers.extra:
                raise ValueError(
                    f"methods.{name}.source needs an extra teacher: set teachers.extra to 1 or more"
                )
        return self

    @property
    def student_network(self) -> ResNetPart | WideResNetPart:
        """The student's network: the teachers' unless the recipe gives another."""
        return self.student.network or self.teachers.network
