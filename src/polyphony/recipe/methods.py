"""Methods: ways to train a student, each with a form, a perturbation and weights of the losses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_serializer

from polyphony._util.settings import Count, Positive, Settings, Share, Temperature
from polyphony.distill import Passes
from polyphony.distill.perturb import BuiltIn, Chain, Perturbation, WithSource
from polyphony.ensembles import DeepEnsemble
from polyphony.recipe.forms import Form
from polyphony.recipe.perturbations import Perturb
from polyphony.recipe.table import StepRule, StepSetting, UnlabelledShare

Start = Literal["fresh", "teacher"]  # initial weights: random, or the first teacher's


class Method(Settings):
    """One way to train a student. Keys that it does not set have their values in `student`."""

    form: Form | None = None
    """Kind of student."""
    start: Start | None = None
    """Initial weights: random (`fresh`) or the first teacher's (`teacher`)."""
    perturb: Perturb | None = None
    """Perturbation, or several: "mixup+ods"; without it, the student learns from labels alone."""
    source: Literal["extra"] | None = None
    """`"extra"`: take ODS directions from an extra teacher."""
    alpha: Share | None = None
    """α: weight of the distillation loss."""
    temperature: Temperature | None = None
    """τ: temperature of the distillation."""
    step_size: StepSetting | None = None
    """η: step of the perturbation."""
    passes: Passes | None = None
    """Forward passes of the student in a step."""
    share: UnlabelledShare | None = None
    """Share of `data.unlabelled` images in a batch; 0 for none."""
    epochs: Count | None = None
    """Epochs of this method."""
    learning_rate: Positive | None = None
    """Learning rate of this method."""

    @field_serializer("perturb")
    def _short(self, perturb: Perturb | None) -> Any:
        """ "mixup+ods" if all parts have their default settings, else a list of tables."""
        parts = perturb or ()
        if all(isinstance(part, BuiltIn) and part.spec() == {"kind": part.kind} for part in parts):
            return self.label or None
        return [part.model_dump(mode="json", exclude={"step_size"} - part.model_fields_set) for part in parts]

    def unused_settings(self) -> tuple[str, str] | None:
        """The first setting that changes nothing, and why; None if there is none."""
        own = self.model_dump(include={"alpha", "temperature", "step_size", "passes"}, exclude_none=True)
        if self.perturb is None and own:
            return min(own), "without perturb a student learns from labels alone; 'clean' perturbs nothing"
        if not self.takes_step and "step_size" in own:
            return "step_size", f"'{self.label}' takes no step, or its table sets one"
        return None

    @property
    def takes_step(self) -> bool:
        """Whether the perturbation uses the method's step size."""
        return any(part.takes_step for part in self.perturb or ())

    @property
    def needs_student(self) -> bool:
        """Whether the perturbation uses the student."""
        return any(part.needs_student for part in self.perturb or ())

    @property
    def mixes_images(self) -> bool:
        """Whether the perturbation mixes images, so that their labels are no longer right."""
        return any(part.mixes_images for part in self.perturb or ())

    @property
    def perturbs(self) -> bool:
        """Whether a perturbation changes the images."""
        return self.label not in ("", "clean")

    @property
    def label(self) -> str:
        """The names of its perturbations, "mixup+ods"; empty for a method without teachers."""
        return "+".join(part.label for part in self.perturb or ())


class Distillation(Settings):
    """All settings of a method with teachers."""

    perturb: Perturb
    source: str | None = None
    alpha: float
    temperature: float
    step_size: float | StepRule
    passes: Passes = "two"
    share: float = 0.0

    def perturbation(self, step_size: float, source: DeepEnsemble | None = None) -> Perturbation:
        """The perturbation; parts whose table sets no step size use `step_size`.

        Parts that take a source take their directions from `source` (default: the teachers).
        """
        chain = tuple(
            WithSource(part.build(step_size), source)
            if source is not None and part.takes_source
            else part.build(step_size)
            for part in self.perturb
        )
        return chain[0] if len(chain) == 1 else Chain(chain)
