"""From a run folder to a student ready to use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from polyphony.recipe.read import suggestion
from polyphony.report.files import read_table
from polyphony.rows import Score, Temperature, headings
from polyphony.scores import JUDGE
from polyphony.serve.description import Description
from polyphony.serve.student import Student
from polyphony.store import Stage, StoreError, read_json, spec_key
from polyphony.study import Study, open_study
from polyphony.words import first_line


def load_student(
    folder: Path | str, method: str | None = None, seed: int | None = None, *, device: str = "cpu"
) -> Student:
    """A student of a run, ready to use: with classes, normalisation and its temperature.

    Of what is left open, method or seed, it is the one of least calibrated NLL on validation images. The data
    need not be there. StoreError, one sentence, where the run or the student is not.
    """
    run = Trained(Path(folder))
    description, weights = run.describe(*run.choose(method, seed))
    return assemble(description, weights, device)


def assemble(description: Description, weights: dict[str, Tensor], device: str) -> Student:
    """The student that a description and weights are, as it predicts."""
    student = description.build()
    try:
        student.load_state_dict(weights)
    except RuntimeError as error:
        fault = first_line(error).rstrip(":")
        raise StoreError(f"the weights of '{description.method}' do not fit its network ({fault})") from error
    return Student(description.form.resolved().trained(student).to(device).eval(), description)


@dataclass(frozen=True)
class Trained:
    """A run whose students are trained and scored; its data is not asked for."""

    folder: Path

    @cached_property
    def study(self) -> Study:
        """The study that was run."""
        return open_study(self.folder, None, "cpu")

    @cached_property
    def scores(self) -> list[Score]:
        """The rows of scores.csv."""
        if not (self.folder / Score.file).is_file():
            raise StoreError(
                f"{self.folder} has no {Score.file}: run 'polyphony evaluate {self.folder}' first"
            )
        return read_table(self.folder, Score)

    def choose(self, method: str | None, seed: int | None) -> tuple[str, int]:
        """Which student is meant: what is left open is as in the one of least calibrated validation NLL."""
        recipe = self.study.recipe
        if method is not None and method not in recipe.methods:
            raise StoreError(
                f"{self.folder} has no method '{method}'; {suggestion(method, [*recipe.methods])}"
            )
        if seed is not None and seed not in recipe.seeds:
            raise StoreError(f"{self.folder} has no seed {seed}; it has {', '.join(map(str, recipe.seeds))}")
        nll = {
            (row.model, row.seed): row.nll
            for row in self.scores
            if (row.split, row.calibration) == ("valid", JUDGE) and row.seed is not None
        }
        meant = [
            (name, number)
            for name, number in self.study.students
            if method in (None, name) and seed in (None, number) and (name, number) in nll
        ]
        if not meant:
            raise StoreError(f"{self.folder} has no scores of that student: run 'polyphony evaluate' on it")
        return min(meant, key=lambda student: nll[student])

    def describe(self, method: str, seed: int) -> tuple[Description, dict[str, Tensor]]:
        """What a student says of itself, and its weights."""
        recipe, stage = self.study.recipe, Stage(self.study.student_folder(method, seed), {})
        weights = stage.weights()
        described = {
            "network": recipe.student_network.model_dump(mode="json"),
            "form": recipe.form_table(method).model_dump(mode="json"),
            "members": recipe.members,
            **self.images(),
            "temperature": self.temperature(method, seed),
            "method": method,
            "seed": seed,
            "data": Path(recipe.data.name).name,
            "recipe": spec_key(recipe.model_dump(mode="json", exclude_none=True)),
            "weights": stage.done()["weights"],
            "scores": self.test_scores(method, seed),
        }
        return Description.read(described, self.folder), weights

    def images(self) -> dict[str, Any]:
        """What the run says of its images: the `classes`, and the `shape` of one."""
        found = read_json(self.folder / "recipe.json").get("images")
        if not isinstance(found, dict):
            raise StoreError(
                f"{self.folder} does not say its classes: run 'polyphony evaluate {self.folder}' again"
            )
        return {name: found.get(name) for name in ("classes", "shape")}

    def temperature(self, method: str, seed: int) -> float:
        """The temperature that suits a student's predictions on validation images."""
        rows = read_table(self.folder, Temperature)
        found = [row.temperature for row in rows if (row.model, row.seed) == (method, seed)]
        if not found:
            raise StoreError(
                f"{self.folder} has no temperature of '{method}', seed {seed}: evaluate it again"
            )
        return found[0]

    def test_scores(self, method: str, seed: int) -> dict[str, float]:
        """A student's calibrated scores on test images, as far as they are finite."""
        wanted = (method, seed, "test", JUDGE)
        rows = [row for row in self.scores if (row.model, row.seed, row.split, row.calibration) == wanted]
        values = {name: getattr(rows[0], name) for name in headings(Score)} if rows else {}
        return {name: value for name, value in values.items() if value is not None and isfinite(value)}
