"""How a student is trained: which form it takes, where the teachers are asked, how much they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, PositiveFloat

from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.perturb import ODS, Adversarial, Chain, Clean, Diversify, Gaussian, Mixup, Perturbation
from polyphony.recipe.forms import Form
from polyphony.recipe.table import Part, Share, StepSize


@dataclass(frozen=True)
class Surroundings:
    """What a perturbation may be made of."""

    step_size: float
    student: Ensemble
    source: DeepEnsemble | None = None  # networks to take directions from, if not the teachers


PERTURBATIONS: dict[str, Callable[[Surroundings], Perturbation]] = {
    "clean": lambda given: Clean(),
    "gaussian": lambda given: Gaussian(given.step_size),
    "ods": lambda given: ODS(given.step_size, source=given.source),
    "confods": lambda given: ODS(given.step_size, scale_by_confidence=True, source=given.source),
    "adversarial": lambda given: Adversarial(given.step_size),
    "diversify": lambda given: Diversify(given.student, given.step_size),
    "mixup": lambda given: Mixup(),
}
WITHOUT_STEP = {"clean", "mixup"}
WITH_SOURCE = {"ods", "confods"}


def are_perturbations(text: str) -> str:
    """A perturbation's name, or several joined by "+" that follow each other."""
    for name in text.split("+"):
        if name not in PERTURBATIONS:
            raise ValueError(f"must be one of {', '.join(PERTURBATIONS)}, or several such as 'mixup+ods'")
    return text


Perturb = Annotated[str, AfterValidator(are_perturbations)]


class Method(Part):
    """One way to train a student; what it leaves open is as in `student`. No perturb: on the labels alone."""

    form: Form | None = None
    perturb: Perturb | None = None
    source: Literal["extra"] | None = None  # ODS directions from an extra teacher, not from those learnt from
    alpha: Share | None = None
    temperature: PositiveFloat | None = None
    step_size: StepSize | None = None
    learning_rate: PositiveFloat | None = None

    @property
    def steps(self) -> set[str]:
        """The perturbations of this method that take a step."""
        return set((self.perturb or "clean").split("+")) - WITHOUT_STEP


class Distillation(Part):
    """A method with teachers, all its settings filled in."""

    perturb: str
    source: str | None = None
    alpha: float
    temperature: float
    step_size: float | Literal["match"]

    def perturbation(self, given: Surroundings) -> Perturbation:
        """The perturbation itself."""
        chain = tuple(PERTURBATIONS[name](given) for name in self.perturb.split("+"))
        return chain[0] if len(chain) == 1 else Chain(chain)
