"""Reading a run folder: recipe, scores, logs, predictions and analyses, by their layout alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from polyphony import metrics
from polyphony.predictions import Predictions, pool
from polyphony.report.files import (
    Done,
    Facts,
    Kind,
    read_analysis,
    read_log,
    read_object,
    read_predictions,
    read_table,
    read_views,
    stored_shape,
)
from polyphony.report.forms import form_of, predicts_as_one
from polyphony.rows import Score
from polyphony.scores import CALIBRATIONS, TEACHERS
from polyphony.store import StoreError, prediction_path


@dataclass(frozen=True)
class Run:
    """A run folder with scores. Nothing is read before it is asked for, and no model ever."""

    folder: Path
    made_by: ClassVar[str] = "study"  # the verb that wrote its recipe.json

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in a folder; one sentence if there is none, or if it is not evaluated yet."""
        if not (folder / "recipe.json").is_file():
            raise StoreError(
                f"{folder} is not a run folder: it has no recipe.json; 'polyphony study' makes one"
            )
        if not (folder / "scores.csv").is_file():
            raise StoreError(
                f"{folder} has no scores.csv to report on: run 'polyphony evaluate {folder}' first"
            )
        run = cls(folder)
        if not run.methods or not run.scored(TEACHERS):
            raise StoreError(
                f"{folder}/scores.csv has no student and teachers on test: evaluate the run again"
            )
        for model, kind in product(run.models, CALIBRATIONS):
            if not run.scored(model, calibration=kind):
                raise StoreError(
                    f"{folder}/scores.csv has no {kind} scores of {model} on test: evaluate the run again"
                )
        return run

    @cached_property
    def facts(self) -> dict[str, Any]:
        """recipe.json: the recipe, the data's fingerprints, versions, machine."""
        again = f"delete it and run 'polyphony {self.made_by}' with its recipe again"
        return read_object(self.folder / "recipe.json", Facts, again)

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe."""
        recipe: dict[str, Any] = self.facts.get("recipe", {})
        return recipe

    @property
    def name(self) -> str:
        """The recipe's name."""
        return str(self.recipe.get("name", self.folder.name))

    @property
    def members(self) -> int:
        """How many teachers are the ensemble; the others are there for the DEE curve."""
        return int(self.recipe["members"])

    @cached_property
    def scores(self) -> list[Score]:
        """All rows of scores.csv."""
        again = f"run 'polyphony evaluate {self.folder}' again"
        return read_table(self.folder, Score, again)

    @cached_property
    def methods(self) -> list[str]:
        """The students' methods that have test scores, in the recipe's order."""
        scored = dict.fromkeys(s.model for s in self.scores if s.split == "test" and s.model != TEACHERS)
        known = [name for name in self.recipe.get("methods", {}) if name in scored]
        return known + [name for name in scored if name not in known]

    @property
    def models(self) -> list[str]:
        """The teachers, then the students."""
        return [TEACHERS, *self.methods]

    def perturbation(self, method: str) -> str | None:
        """What a method does to the inputs ("clean", "ods", …); none for one from scratch."""
        settings: dict[str, Any] = self.recipe.get("methods", {}).get(method, {})
        return settings.get("perturb")

    def form(self, method: str) -> str:
        """The kind of student a method trains: "batch_ensemble", "mimo", …"""
        return str(form_of(self.recipe, method)["kind"])

    def members_of(self, model: str) -> int:
        """How many members a model has when it predicts; of the teachers those that are the ensemble."""
        for seed in self.seeds(model) if model != TEACHERS else []:
            path = self.prediction_path(model, seed, "test")
            if path.is_file():
                return stored_shape(path)[0]
        return 1 if model != TEACHERS and predicts_as_one(self.form(model)) else self.members

    def methods_with(self, *perturbations: str | None) -> list[str]:
        """The methods that perturb in one of these ways, in their order."""
        return [name for kind in perturbations for name in self.methods if self.perturbation(name) == kind]

    def seeds(self, model: str) -> list[int | None]:
        """The seeds of a model that have test scores; the teachers have none."""
        return [score.seed for score in self.scored(model)]

    def scored(self, model: str, split: str = "test", calibration: str = "calibrated") -> list[Score]:
        """A model's rows, one a seed."""
        wanted = (model, split, calibration)
        return [score for score in self.scores if (score.model, score.split, score.calibration) == wanted]

    def mean(self, model: str, column: str, calibration: str = "calibrated") -> metrics.MeanSd:
        """Mean and standard deviation over seeds of a column of the test scores; a missing DEE is NaN."""
        values = [getattr(score, column) for score in self.scored(model, calibration=calibration)]
        return metrics.mean_sd([math.nan if value is None else value for value in values])

    def predictions(self, model: str, seed: int | None, split: str) -> Predictions | None:
        """What a model predicted on a split, or nothing; of the teachers all there are."""
        return read_predictions(self.prediction_path(model, seed, split))

    def prediction_path(self, model: str, seed: int | None, split: str) -> Path:
        """Where a model's predictions on a split are, if they are there."""
        return prediction_path(self.folder, model, seed, split)

    def images(self, split: str) -> int | None:
        """How many images a split has that the teachers predicted on; nothing where they did not."""
        path = self.prediction_path(TEACHERS, None, split)
        return stored_shape(path)[1] if path.is_file() else None

    def ensemble(self, model: str, split: str) -> list[Predictions]:
        """A model's predictions, one for each seed that has them; of the teachers only the ensemble's."""
        found = [self.of_members(model, seed, split) for seed in self.seeds(model)]
        return [each for each in found if each is not None]

    def of_members(self, model: str, seed: int | None, split: str) -> Predictions | None:
        """One seed's predictions, if they are there; of the teachers only the ensemble's."""
        each = self.predictions(model, seed, split)
        return each and each.first(self.members)

    def pooled(self, model: str, split: str) -> Predictions | None:
        """The same with the examples of all seeds in one row: [m s·n k]."""
        each = self.ensemble(model, split)
        return pool(each) if each else None

    def log_probs(self, model: str, split: str, calibration: str) -> list[tuple[Tensor, Tensor]]:
        """(log-probabilities [n k], labels [n]) of each seed, at its validation temperature if calibrated."""
        pairs = []
        for seed in self.seeds(model):
            tested = self.of_members(model, seed, split)
            if tested is None:
                continue
            log_probs = tested.log_probs()
            if calibration == "calibrated":
                temperature = self.temperature(model, seed)
                if temperature is None:
                    return []
                log_probs = metrics.temper(log_probs, temperature)
            pairs.append((log_probs, tested.labels))
        return pairs

    def temperature(self, model: str, seed: int | None) -> float | None:
        """The temperature that suits a model's validation predictions, if they are there."""
        valid = self.of_members(model, seed, "valid")
        if valid is None:
            return None
        return metrics.fit_temperature(valid.log_probs(), valid.labels)

    def splits(self, prefix: str) -> list[str]:
        """Splits the teachers have predictions on whose name starts so: "ood-", "train+", …"""
        folder = self.folder / "predictions" / TEACHERS
        return sorted(path.stem for path in folder.glob(f"{prefix}*.safetensors"))

    def table(self, kind: type[Kind]) -> list[Kind]:
        """A table of the analyses; without rows where it was not made."""
        return read_analysis(self.folder, kind) if (self.folder / kind.file).is_file() else []

    def views(self) -> dict[str, Tensor] | None:
        """What each member says of a few images, and the images, or nothing."""
        path = self.folder / "analysis" / "members.safetensors"
        return read_views(path) if path.is_file() else None

    def logs(self, model: str) -> list[list[dict[str, float]]]:
        """The training logs of a method's seeds, or of the teachers: one row an epoch."""
        folder = self.folder / TEACHERS if model == TEACHERS else self.folder / "students" / model
        return [read_log(path) for path in sorted(folder.glob("*/log.jsonl"), key=_by_number)]

    def seconds(self, model: str) -> list[float]:
        """How long each training took."""
        return [float(each["seconds"]) for each in self.trainings(model) if "seconds" in each]

    def adopted(self, model: str) -> list[str]:
        """The name of the run folder each training that was not done here was taken over from."""
        depth = 1 if model == TEACHERS else 2  # RUN/teachers/0, RUN/students/METHOD/0
        folders = [Path(each["adopted"]) for each in self.trainings(model) if "adopted" in each]
        return [folder.parents[depth].name for folder in folders]

    def trainings(self, model: str) -> list[dict[str, Any]]:
        """What each finished training of a method's seeds, or of the teachers, says of itself."""
        folder = self.folder / TEACHERS if model == TEACHERS else self.folder / "students" / model
        found = sorted(folder.glob("*/done.json"), key=_by_number)
        return [read_object(path, Done, f"delete {path.parent} to train again") for path in found]


def _by_number(path: Path) -> tuple[int, str]:
    name = path.parent.name
    return (int(name) if name.isdecimal() else 0, name)
