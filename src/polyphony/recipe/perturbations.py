"""The perturbations that a recipe can name: the classes of `distill.perturb`, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from polyphony._util.settings import as_table
from polyphony.distill.perturb import (
    ODS,
    Adversarial,
    Clean,
    Diversify,
    Gaussian,
    MixesImages,
    Mixup,
    Perturbation,
    mixes_images,
)
from polyphony.recipe.python import PythonTable


class PythonPerturbation(PythonTable):
    """The user's perturbation, by the class or function that makes it.

    If this has an argument `step_size`, it gets the recipe's step size. Its attributes `reads_temperature`,
    `needs_student`, `takes_source` and `mixes_images` mean the same as in `distill.perturb.BuiltIn` (default:
    False). A function that makes a perturbation needs them too, for example `make.mixes_images = True`.
    """

    kind: Literal["python"]

    @property
    def takes_step(self) -> bool:
        """Whether it has an argument `step_size` that `args` does not set."""
        with self.as_recipe_error():
            return "step_size" in inspect.signature(self.load()).parameters.keys() - self.args

    @property
    def reads_temperature(self) -> bool:
        return self._has("reads_temperature")

    @property
    def needs_student(self) -> bool:
        return self._has("needs_student")

    @property
    def takes_source(self) -> bool:
        return self._has("takes_source")

    @property
    def mixes_images(self) -> bool:
        return self._has("mixes_images")

    def _has(self, attribute: str) -> bool:
        with self.as_recipe_error():
            return getattr(self.load(), attribute, False) is True

    def build(self, step_size: float) -> Perturbation:
        perturbation: Perturbation = self.make(**({"step_size": step_size} if self.takes_step else {}))
        if self.mixes_images and not mixes_images(perturbation):  # only the function that makes it says so
            return MixesImages(perturbation)
        return perturbation


def as_tables(value: object) -> object:
    """ "mixup+ods" → ({"kind": "mixup"}, {"kind": "ods"}); one table → a tuple of one table."""
    parts = value.split("+") if isinstance(value, str) else [value] if isinstance(value, dict) else value
    if not isinstance(parts, Sequence):
        raise ValueError("must be a name such as 'ods', several such as 'mixup+ods', or a table with a kind")
    return tuple(as_table(part) for part in parts)


AnyPerturbation = Clean | Gaussian | ODS | Adversarial | Diversify | Mixup | PythonPerturbation
Perturb = Annotated[
    tuple[Annotated[AnyPerturbation, Field(discriminator="kind")], ...],
    Field(min_length=1),
    BeforeValidator(as_tables),
]
