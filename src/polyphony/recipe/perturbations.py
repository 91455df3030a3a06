"""The perturbations a recipe can name, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat

from polyphony.distill import perturb
from polyphony.distill.perturb import ODS, Perturbation, Traits
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.recipe.python import PythonTable
from polyphony.recipe.table import RecipeError, Table, Temperature, as_table


@dataclass(frozen=True)
class Surroundings:
    """What a perturbation may be made of."""

    step_size: float
    student: Ensemble
    source: DeepEnsemble | None = None  # networks to take directions from, if not the teachers


class PerturbTable(Table):
    """A perturbation by its kind; its other keys are arguments of the class that it `makes`."""

    makes: ClassVar[Callable[..., Perturbation]]
    always: ClassVar[dict[str, Any]] = {}  # arguments that this kind stands for

    @property
    def traits(self) -> Traits:
        """What it is."""
        found: Traits = getattr(self.makes, "traits", Traits())
        return found

    def make(self, **given: Any) -> Perturbation:
        """The perturbation, from its own keys and what it is given."""
        return type(self).makes(**given, **self.always, **self.model_dump(exclude={"kind"}))

    def build(self, given: Surroundings) -> Perturbation:
        """The perturbation, made of what it asks for."""
        traits = self.traits
        asked = {
            "step_size": traits.takes_step,
            "student": traits.needs_student,
            "source": traits.takes_source,
        }
        return self.make(**{key: getattr(given, key) for key, wanted in asked.items() if wanted})


class CleanTable(PerturbTable):
    """Inputs as they are."""

    makes = perturb.Clean
    kind: Literal["clean"]


class GaussianTable(PerturbTable):
    """A step in a random direction."""

    makes = perturb.Gaussian
    kind: Literal["gaussian"]


class ODSTable(PerturbTable):
    """A step that moves a teacher's output towards a random guide."""

    makes = ODS
    kind: Literal["ods"]


class ConfODSTable(PerturbTable):
    """The same, shorter where the teacher is not confident."""

    makes, always = ODS, {"scale_by_confidence": True}
    kind: Literal["confods"]


class AdversarialTable(PerturbTable):
    """A step that raises a teacher's loss."""

    makes = perturb.Adversarial
    kind: Literal["adversarial"]


class DiversifyTable(PerturbTable):
    """A step that makes teachers disagree where members do not yet, at a temperature of its own."""

    makes = perturb.Diversify
    kind: Literal["diversify"]
    temperature: Temperature = 1.0


class MixupTable(PerturbTable):
    """Images mixed with each other."""

    makes = perturb.Mixup
    kind: Literal["mixup"]
    concentration: PositiveFloat = 1.0


class PythonPerturbTable(PythonTable, PerturbTable):
    """One of the user's own; the class or function named may say what it is by its `traits`."""

    kind: Literal["python"]

    @property
    def traits(self) -> Traits:
        found: Traits = getattr(self.load(), "traits", Traits())
        if not isinstance(found, Traits):
            raise RecipeError(f"the traits of '{self.name}' are a {type(found).__name__}, not perturb.Traits")
        return found


def as_tables(value: object) -> object:
    """ "mixup+ods" → ({"kind": "mixup"}, {"kind": "ods"}); a table stands for itself alone."""
    each = value.split("+") if isinstance(value, str) else [value] if isinstance(value, dict) else value
    if not isinstance(each, Sequence):
        raise ValueError("must be a name such as 'ods', several such as 'mixup+ods', or a table with a kind")
    return tuple(as_table(one) for one in each)


Perturb = Annotated[
    tuple[
        Annotated[
            CleanTable
            | GaussianTable
            | ODSTable
            | ConfODSTable
            | AdversarialTable
            | DiversifyTable
            | MixupTable
            | PythonPerturbTable,
            Field(discriminator="kind"),
        ],
        ...,
    ],
    Field(min_length=1),
    BeforeValidator(as_tables),
]
