"""The description of a student: how it is built, what its outputs mean, where it comes from."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from polyphony import __version__
from polyphony._util.settings import MOST_MEMBERS, Settings
from polyphony._util.text import UserError
from polyphony.data.options import LARGEST_SIDE
from polyphony.data.splits import Resize
from polyphony.ensembles import Ensemble
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS
from polyphony.recipe import Blueprint, Form, NetworkTable
from polyphony.recipe.networks import Network
from polyphony.recipe.python import PythonTable
from polyphony.recipe.table import RecipeError
from polyphony.runs.proof import Proof, with_proof
from polyphony.runs.rows import Threshold
from polyphony.runs.store import StoreError

Side = Annotated[int, Field(gt=0, le=LARGEST_SIDE)]


class CoverageError(UserError, ValueError):
    """Raised for a coverage outside the range that a student has thresholds for."""


class Thresholds(Settings):
    """Thresholds for each of `coverages`, ascending; a coverage between two uses those of the higher one."""

    coverages: tuple[float, ...]
    confidences: tuple[float, ...]  # this share of images has at least this calibrated confidence
    scores: tuple[float | None, ...]  # a set holds classes with −log p up to this; None: all classes
    temperature: float  # of p in the sets

    @classmethod
    def of(cls, rows: Sequence[Threshold]) -> Thresholds | None:
        """The thresholds from a student's rows of the run's table; None without rows."""
        rows = sorted(rows, key=lambda row: row.coverage)
        if not rows:
            return None
        return cls(
            coverages=tuple(row.coverage for row in rows),
            confidences=tuple(row.confidence for row in rows),
            scores=tuple(None if math.isinf(row.score) else row.score for row in rows),
            temperature=rows[0].temperature,
        )

    def confidence(self, coverage: float) -> float:
        """The lowest confidence at which the student answers, so that it answers this share of images."""
        return self.confidences[self._place(coverage)]

    def score(self, coverage: float) -> float:
        """The largest −log p of a class in a set of this coverage; inf for all classes."""
        score = self.scores[self._place(coverage)]
        return math.inf if score is None else score

    def _place(self, coverage: float) -> int:
        if not self.coverages[0] <= coverage <= self.coverages[-1]:
            ends = f"{self.coverages[0]:g} to {self.coverages[-1]:g}"
            raise CoverageError(f"a coverage must be from {ends}, not {coverage:g}")
        return bisect_left(self.coverages, coverage)


class Description(Settings):
    """Everything needed to build a student and to read its answers, and where it comes from."""

    network: Network
    form: Form
    members: Annotated[int, Field(gt=0, le=MOST_MEMBERS)]
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    shape: tuple[Side, Side, Side]  # of an image: channels, height, width
    resize: Resize = "crop"  # how images of another size are resized
    temperature: Annotated[float, Field(ge=TEMPERATURE_BOUNDS[0], le=TEMPERATURE_BOUNDS[1])]
    method: str
    seed: int
    data: str
    recipe: str  # hash of the recipe
    weights: str  # hash of the weights
    scores: dict[str, float]  # calibrated, on test images
    thresholds: Thresholds | None = None  # from validation images; None for early runs
    sets: float | None = None  # coverage of the output `set` of an exported file; None: no such output
    licence: str = ""  # for other users
    proof: Proof | None = None  # that its members were tested (`nn/trial.py`)
    version: str = __version__

    @classmethod
    def read(cls, config: Mapping[str, Any], where: object, code_in: Path | None = None) -> Description:
        """Check a config; raises a StoreError that names `where` and the fault.

        The user's own code is imported from the folder `code_in`.
        """
        context = {"folder": str(code_in.absolute())} if code_in else None
        try:
            return cls.model_validate_json(json.dumps(config), strict=True, context=context)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"]))
            raise StoreError(f"{where} does not describe a student ({place}: {fault['msg']})") from None

    def with_code(self, folder: Path) -> Description:
        """The same description; if the folder exists, the user's own code is imported from it."""
        if not folder.is_dir():
            return self
        tables = {"network": self.network, "form": self.form}
        update = {"folder": str(folder.absolute())}
        own = {
            name: table.model_copy(update=update)
            for name, table in tables.items()
            if isinstance(table, PythonTable)
        }
        return self.model_copy(update=own)

    @property
    def blueprint(self) -> Blueprint:
        """The network's table, the number of classes and the shape: what a form builds networks from."""
        return Blueprint(self.network, len(self.classes), self.shape)

    @property
    def own_network(self) -> NetworkTable:
        """The network that its form is built from."""
        return self.form.resolved().network_table(self.blueprint, self.members)

    def to_config(self) -> dict[str, Any]:
        """The description as JSON, without paths of this machine."""
        try:
            network = self.network.portable()
        except RecipeError:  # it cannot be described without its folder: only its name is stored
            network = self.network.model_copy(update={"name": self.network.label})
        portable = self.model_copy(update={"network": network})
        return portable.model_dump(mode="json", exclude={"network": {"folder"}, "form": {"folder"}})

    def build(self) -> Ensemble:
        """The student as it is trained, with random weights; raises a StoreError if it cannot be built."""
        form = self.form.resolved()
        try:
            return form.student(with_proof(self.blueprint, self.form, self.proof), self.members, None)
        except RecipeError:
            raise
        except (ValueError, AttributeError) as error:
            raise StoreError(f"a student of '{self.method}' cannot be built ({error})") from error
