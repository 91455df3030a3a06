"""Methods: the form of a student, its perturbation, and the weight of its teachers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveFloat, field_serializer

from polyphony._util.settings import Count, Settings, Share, Temperature
from polyphony.distill import Passes
from polyphony.distill.perturb import BuiltIn, Chain, Perturbation, WithSource
from polyphony.ensembles import DeepEnsemble
from polyphony.recipe.forms import Form
from polyphony.recipe.perturbations import Perturb
from polyphony.recipe.table import StepSize, UnlabelledShare

Start = Literal["fresh", "teacher"]  # random weights, or the first teacher's


class Method(Settings):
    """One way to train a student (defaults: as in `student`). Without perturb it learns from labels alone."""

    form: Form | None = None
    """What the student is built as."""
    start: Start | None = None
    """First weights: random (`fresh`) or the first teacher's."""
    perturb: Perturb | None = None
    """Perturbation, or several: "mixup+ods"; without one, the student learns from labels alone."""
    source: Literal["extra"] | None = None
    """`"extra"`: take ODS directions from an extra teacher."""
    alpha: Share | None = None
    """α: share of the distillation loss."""
    temperature: Temperature | None = None
    """τ: temperature of the distillation."""
    step_size: StepSize | None = None
    """η: step of the perturbation."""
    passes: Passes | None = None
    """Passes of the student in a step."""
    share: UnlabelledShare | None = None
    """Share of the rows of a batch that are `data.unlabelled` images; 0 for none."""
    epochs: Count | None = None
    """Epochs of this method."""
    learning_rate: PositiveFloat | None = None
    """Learning rate of this method."""

    @field_serializer("perturb")
    def _in_short(self, perturb: Perturb | None) -> Any:
        """A name if nothing else is set, as people write it."""
        if all(isinstance(each, BuiltIn) and each.spec() == {"kind": each.kind} for each in perturb or ()):
            return self.label or None
        unset = [{"step_size"} - each.model_fields_set for each in perturb or ()]
        return [
            each.model_dump(mode="json", exclude=out) for each, out in zip(perturb or (), unset, strict=True)
        ]

    @property
    def takes_step(self) -> bool:
        return any(each.takes_step for each in self.perturb or ())

    @property
    def needs_student(self) -> bool:
        """Whether the perturbation uses the student."""
        return any(each.needs_student for each in self.perturb or ())

    @property
    def perturbs(self) -> bool:
        """Whether the images are changed at all."""
        return self.label not in ("", "clean")

    @property
    def label(self) -> str:
        """The names of its perturbations, "mixup+ods"; empty for a method without teachers."""
        return "+".join(each.label for each in self.perturb or ())


class Distillation(Settings):
    """A method with teachers, with all its settings."""

    perturb: Perturb
    source: str | None = None
    alpha: float
    temperature: float
    step_size: float | Literal["match"]
    passes: Passes = "two"
    share: float = 0.0

    def perturbation(self, step_size: float, source: DeepEnsemble | None = None) -> Perturbation:
        """The perturbation; `step_size` is for parts whose table sets none."""
        chain = tuple(each.build(step_size) for each in self.perturb)
        perturb: Perturbation = chain[0] if len(chain) == 1 else Chain(chain)
        return perturb if source is None else WithSource(perturb, source)
