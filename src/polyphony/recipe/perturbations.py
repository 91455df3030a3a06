"""The perturbations that a recipe can name: the classes of `distill.perturb`, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from polyphony._util.settings import as_table
from polyphony.distill.perturb import ODS, Adversarial, Clean, Diversify, Gaussian, Mixup, Perturbation
from polyphony.recipe.python import PythonTable


class PythonPerturbation(PythonTable):
    """A perturbation of the user's: a class or function that makes it.

    It gets the recipe's step size as `step_size` if it has such an argument. The attributes of
    `distill.perturb.BuiltIn` (`reads_temperature`, …) tell the recipe what else it must know; each is False
    if it is missing.
    """

    kind: Literal["python"]

    @property
    def takes_step(self) -> bool:
        """Whether it takes a step whose size its `args` do not set."""
        with self.explained():
            return "step_size" in inspect.signature(self.load()).parameters.keys() - self.args

    @property
    def reads_temperature(self) -> bool:
        return self._says("reads_temperature")

    @property
    def needs_student(self) -> bool:
        return self._says("needs_student")

    @property
    def takes_source(self) -> bool:
        return self._says("takes_source")

    def _says(self, trait: str) -> bool:
        with self.explained():
            return bool(getattr(self.load(), trait, False))

    def build(self, step_size: float) -> Perturbation:
        made: Perturbation = self.make(**({"step_size": step_size} if self.takes_step else {}))
        return made


def as_tables(value: object) -> object:
    """ "mixup+ods" → ({"kind": "mixup"}, {"kind": "ods"}); one table becomes a tuple of one."""
    each = value.split("+") if isinstance(value, str) else [value] if isinstance(value, dict) else value
    if not isinstance(each, Sequence):
        raise ValueError("must be a name such as 'ods', several such as 'mixup+ods', or a table with a kind")
    return tuple(as_table(one) for one in each)


AnyPerturbation = Clean | Gaussian | ODS | Adversarial | Diversify | Mixup | PythonPerturbation
Perturb = Annotated[
    tuple[Annotated[AnyPerturbation, Field(discriminator="kind")], ...],
    Field(min_length=1),
    BeforeValidator(as_tables),
]
