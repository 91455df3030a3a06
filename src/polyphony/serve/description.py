"""What a student says of itself: how it is built, what its outputs mean, where it comes from."""

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
from polyphony.runs.proof import Proof, proven
from polyphony.runs.rows import Threshold
from polyphony.runs.store import StoreError

Side = Annotated[int, Field(gt=0, le=LARGEST_SIDE)]


class CoverageError(UserError, ValueError):
    """A coverage that a student cannot be asked for."""


class Thresholds(Settings):
    """One entry for each of `coverages`, ascending. A coverage between two takes the higher one's."""

    coverages: tuple[float, ...]
    confidences: tuple[float, ...]  # calibrated: images with at least this are so large a share
    scores: tuple[float | None, ...]  # a set holds classes whose −log p is at most this; none for all classes
    temperature: float  # of p in the sets

    @classmethod
    def of(cls, rows: Sequence[Threshold]) -> Thresholds | None:
        """A student's rows of the run's table; nothing where there are none."""
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
        """The confidence from which the student answers, so that it answers this share of the images."""
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
    """All that is needed to build a student and to read its answers, and its origin."""

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
    thresholds: Thresholds | None = None  # of validation images; early runs have none
    sets: float | None = None  # coverage of the output `set` of an exported file; None: no such output
    licence: str = ""  # under which others may use it
    proof: Proof | None = None  # the result of the trial of its members
    version: str = __version__

    @classmethod
    def read(cls, described: Mapping[str, Any], where: object, code_in: Path | None = None) -> Description:
        """Read JSON, with the user's own code in a folder; raises a StoreError that says what is wrong."""
        context = {"folder": str(code_in.absolute())} if code_in else None
        try:
            return cls.model_validate_json(json.dumps(described), strict=True, context=context)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"]))
            raise StoreError(f"{where} describes no student ({place}: {fault['msg']})") from None

    def with_code(self, folder: Path) -> Description:
        """The same description; the user's own code is imported from a folder, if that exists."""
        if not folder.is_dir():
            return self
        tables = {"network": self.network, "form": self.form}
        moved = {"folder": str(folder.absolute())}
        own = {
            k: each.model_copy(update=moved) for k, each in tables.items() if isinstance(each, PythonTable)
        }
        return self.model_copy(update=own)

    @property
    def blueprint(self) -> Blueprint:
        """What its networks are made from."""
        return Blueprint(self.network, len(self.classes), self.shape)

    @property
    def own_network(self) -> NetworkTable:
        """The network that its form is built from."""
        return self.form.resolved().network_table(self.blueprint, self.members)

    def to_config(self) -> dict[str, Any]:
        """As JSON, without the folders of this machine."""
        try:
            network = self.network.portable()
        except RecipeError:  # then its name must do
            network = self.network.model_copy(update={"name": self.network.label})
        told = self.model_copy(update={"network": network})
        return told.model_dump(mode="json", exclude={"network": {"folder"}, "form": {"folder"}})

    def build(self) -> Ensemble:
        """The student with fresh weights, as it was trained."""
        form = self.form.resolved()
        try:
            return form.student(proven(self.blueprint, self.form, self.proof), self.members, None)
        except RecipeError:
            raise
        except (ValueError, AttributeError) as error:
            raise StoreError(f"a student of '{self.method}' cannot be built ({error})") from error
