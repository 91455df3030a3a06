"""The reader of a run folder: recipe, scores, prices, logs, predictions and analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from polyphony.metrics import MeanSd, Predictions
from polyphony.recipe import Recipe, RecipeError, check
from polyphony.runs.predictions import (
    CORRUPTED,
    count_images,
    prediction_path,
    read_predictions,
    read_views,
)
from polyphony.runs.rows import EnsembleNll, Latency, Score, Temperature
from polyphony.runs.scores import BEST_TEACHER, CALIBRATIONS, TEACHERS, Dee, mean_of, score_text, select
from polyphony.runs.stage import DONE, LOG
from polyphony.runs.store import Done, Facts, FileError, Row, damaged_file, read_log, read_object, read_table


@dataclass(frozen=True)
class Run:
    """A run folder with scores. Each file is read and checked once, at its first use; no model is loaded."""

    folder: Path
    _tables: dict[type[Any], list[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in a folder; raises a StoreError if there is no run or it has no scores."""
        run = cls(folder)
        path = folder / Score.file
        for required in (folder / "recipe.json", path):
            if not required.is_file():
                raise FileError(required, "is not there")
        run.check_models(path, [score.model for score in run.scores])
        if not run.methods or not run.scored(TEACHERS):
            raise FileError(path, "has no scores of students and teachers on test")
        for model, kind in product(run.models, CALIBRATIONS):
            if not run.scored(model, calibration=kind):
                raise FileError(path, f"has no {kind} scores of {model} on test")
        return run

    def check_models(self, path: Path, models: Iterable[str]) -> None:
        """Raise a FileError if a table names models that the recipe does not have."""
        for model in models:
            if model not in (TEACHERS, BEST_TEACHER, *self.recipe.methods):
                raise damaged_file(path, f"recipe.json has no method '{model}'")

    @cached_property
    def facts(self) -> Facts:
        """recipe.json."""
        return read_object(self.folder / "recipe.json", Facts)

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / "recipe.json"
        try:
            return check(self.facts.recipe, path.name, code=False, stored=True)
        except RecipeError as error:
            raise damaged_file(path, error) from None

    @property
    def members(self) -> int:
        """The number of teachers in the ensemble, without the extra teachers of the DEE curve."""
        return self.recipe.members

    @property
    def teacher_count(self) -> int:
        """The number of teachers of the DEE curve: the ensemble's and the extra ones."""
        return self.recipe.members + self.recipe.teachers.extra

    @cached_property
    def scores(self) -> list[Score]:
        """All rows of scores.csv."""
        return self.table(Score)

    @cached_property
    def methods(self) -> list[str]:
        """The methods with test scores, in the order of the recipe."""
        scored = {score.model for score in self.scores if score.split == "test"}
        return [name for name in self.recipe.methods if name in scored]

    @property
    def models(self) -> list[str]:
        """The models with scores: the teachers, perhaps the best teacher alone, then the methods."""
        best = [BEST_TEACHER] if self.scored(BEST_TEACHER) else []
        return [TEACHERS, *best, *self.methods]

    @property
    def trained(self) -> list[str]:
        """The models with trainings of their own: the teachers and the methods."""
        return [TEACHERS, *self.methods]

    @property
    def baseline(self) -> str | None:
        """The single-network baseline: the best teacher, or the only one; None in runs of early versions."""
        return BEST_TEACHER if self.scored(BEST_TEACHER) else TEACHERS if self.members == 1 else None

    def perturbation(self, method: str) -> str | None:
        """The perturbation of a method ("clean", "ods", …); None without teachers."""
        return self.recipe.methods[method].label or None

    def methods_with(self, perturbation: str | None) -> list[str]:
        """The methods with this perturbation; with None, the methods without teachers."""
        return [name for name in self.methods if self.perturbation(name) == perturbation]

    def members_of(self, model: str) -> int:
        """The number of members with which a model predicts, without extra teachers."""
        if model in (TEACHERS, BEST_TEACHER):
            return self.members if model == TEACHERS else 1
        counts = [saved.members for (name, _, _), saved in self.predictions.items() if name == model]
        return counts[0] if counts else self.recipe.form_table(model).predictors(self.members)

    def scored(self, model: str, split: str = "test", calibration: str = "calibrated") -> list[Score]:
        """A model's rows of scores.csv, one per seed."""
        return select(self.scores, model, split, calibration)

    def valid_nll(self, model: str) -> dict[int, float]:
        """A model's calibrated NLL on validation images by seed."""
        return {row.seed: row.nll for row in self.scored(model, "valid") if row.seed is not None}

    def mean(self, model: str, column: str) -> MeanSd:
        """Mean and standard deviation over seeds of a column of the calibrated test scores."""
        return mean_of(self.scored(model), column)

    def by_seed(self, model: str, column: str, calibration: str = "calibrated") -> dict[int | None, float]:
        """A column of a model's test scores by seed, without missing values."""
        values = {score.seed: getattr(score, column) for score in self.scored(model, calibration=calibration)}
        return {seed: value for seed, value in values.items() if value is not None}

    def text(self, model: str, column: str, calibration: str = "calibrated") -> str:
        """A model's test score over its seeds, as text for people."""
        values = self.by_seed(model, column, calibration).values()
        return score_text(column, list(values), self.teacher_count)

    def params(self, model: str) -> int:
        """The number of parameters of a model; for the teachers, of all teachers in the ensemble."""
        return self.scored(model)[0].params

    def dee(self, model: str, calibration: str = "calibrated") -> Dee | None:
        """How many teachers a model is worth; None without a DEE curve."""
        seeds = list(self.by_seed(model, "dee", calibration).values())
        nll = mean_of(self.scored(model, calibration=calibration), "nll").mean
        curve = self.curves.get(calibration, ())
        return Dee.of(seeds, self.teacher_count, nll, curve) if seeds else None

    def follows(self, model: str) -> float | None:
        """How far members follow their own teachers: `voice` as a share of the teachers' mean-KLD.

        1 for exact copies of the teachers, 0 for members that are as far from their own teacher as from the
        others. None without teachers, or without one member for each teacher.
        """
        if model not in self.methods or self.perturbation(model) is None:
            return None
        voices, kld = self.by_seed(model, "voice").values(), self.mean(TEACHERS, "kld").mean
        return fmean(voices) / kld if voices and kld else None

    def diversity_share(self, model: str) -> float | None:
        """A student's mean-KLD as a share of the teachers' mean-KLD.

        None for one network, and for a student that is worse than one teacher: its members are diverse
        because they make different errors.
        """
        own, teachers = (self.mean(name, "kld").mean for name in (model, TEACHERS))
        return own / teachers if own and teachers and not self.is_worse(model) else None

    def is_worse(self, model: str) -> bool:
        """Whether a model's calibrated test NLL is above the best teacher's; without one, its DEE below 1."""
        if self.baseline:
            return self.mean(model, "nll").mean > self.mean(self.baseline, "nll").mean
        dee = self.dee(model)
        return dee is not None and dee.value < 1

    def price(self, model: str, batch: int | None = None) -> Latency | None:
        """What a model's answers cost for a batch (default: the smallest measured)."""
        rows = [row for row in self.table(Latency) if row.model == model and batch in (None, row.batch)]
        return min(rows, key=lambda row: row.batch, default=None)

    def times_one_teacher(self, model: str) -> float | None:
        """A model's milliseconds as a multiple of one teacher's, if both were measured."""
        own, baseline = self.price(model), self.price(self.baseline or "")
        return own.milliseconds / baseline.milliseconds if own and baseline else None

    @cached_property
    def curves(self) -> dict[str, list[float]]:
        """The saved DEE curves, by calibration: test NLL of deep ensembles of size 0, 1, 2, …"""
        rows = [row for row in self.table(EnsembleNll) if row.split == "test"]
        curves = {kind: [row for row in rows if row.calibration == kind] for kind in CALIBRATIONS}
        for kind, curve in curves.items() if rows else ():
            if [row.size for row in curve] != list(range(self.teacher_count + 1)):
                raise damaged_file(self.folder / EnsembleNll.file, f"the {kind} curve has other sizes")
        return {kind: [row.nll for row in curve] for kind, curve in curves.items() if curve}

    @cached_property
    def predictions(self) -> dict[tuple[str, int | None, str], Predictions]:
        """Predictions by model, seed and split, without corrupted images; with the extra teachers."""
        result: dict[tuple[str, int | None, str], Predictions] = {}
        members, classes = {TEACHERS: self.members}, 0
        for model, seed, path in self._prediction_files():
            saved = result[model, seed, path.stem] = read_predictions(path)
            classes = classes or saved.logits.shape[2]
            ensemble = saved.first(self.members) if model == TEACHERS else saved
            expected = members.setdefault(model, saved.members), classes
            if (ensemble.members, ensemble.logits.shape[2]) != expected:
                raise damaged_file(path, "it has other members or classes than the rest")
        return result

    def _prediction_files(self) -> Iterator[tuple[str, int | None, Path]]:
        for score in (score for model in self.trained for score in self.scored(model)):
            folder = prediction_path(self.folder, score.model, score.seed, "test").parent
            for path in sorted(folder.glob("*.safetensors")):
                if not path.stem.startswith(CORRUPTED):
                    yield score.model, score.seed, path

    def images(self, split: str) -> int | None:
        """The number of images of a split; None if the teachers did not predict on it."""
        path = prediction_path(self.folder, TEACHERS, None, split)
        return count_images(path) if path.is_file() else None

    def ensemble(self, model: str, split: str) -> dict[int | None, Predictions]:
        """A model's saved predictions by seed, without extra teachers."""
        if model == BEST_TEACHER:
            teachers = self.ensemble(TEACHERS, split).values()
            numbers = [row.seed for row in self.scored(model)]
            return {j: saved.member(j) for saved in teachers for j in numbers if j is not None}
        return {
            seed: saved.first(self.members) if model == TEACHERS else saved
            for (name, seed, where), saved in self.predictions.items()
            if (name, where) == (model, split)
        }

    def pooled(self, model: str, split: str) -> Predictions | None:
        """A model's predictions with the images of all seeds joined, [m s·n k]; None if none are saved."""
        by_seed = self.ensemble(model, split)
        return Predictions.joined(list(by_seed.values())) if by_seed else None

    @cached_property
    def temperatures(self) -> dict[tuple[str, int | None], float]:
        """The temperatures that the study fitted on validation images, by model and seed."""
        result = {(row.model, row.seed): row.temperature for row in self.table(Temperature)}
        if not all(temperature > 0 for temperature in result.values()):
            raise damaged_file(self.folder / Temperature.file, "a temperature is not above 0")
        return result

    def log_probs(self, model: str, calibration: str) -> Tensor | None:
        """Log-probabilities of the test images in the order of `pooled`; if calibrated, at each seed's
        temperature. None if predictions or temperatures are missing. [s·n k]"""
        parts = []
        for seed, saved in self.ensemble(model, "test").items():
            temperature = 1.0 if calibration == "standard" else self.temperatures.get((model, seed))
            if temperature is None:
                return None
            parts.append(saved.log_probs(temperature))
        return torch.cat(parts) if parts else None

    @cached_property
    def perturbed_training(self) -> list[tuple[list[str], Predictions]]:
        """The teachers' predictions on perturbed training images; methods with equal ones share an entry."""
        groups: list[tuple[list[str], Predictions]] = []
        for method in self.methods:
            saved = self.pooled(TEACHERS, f"train+{method}")
            if saved is None:
                continue
            equal = [names for names, other in groups if other.logits.equal(saved.logits)]
            if equal:
                equal[0].append(method)
            else:
                groups.append(([method], saved))
        return groups

    def table(self, kind: type[Row]) -> list[Row]:
        """The rows of a table; empty if the file is missing."""
        if kind not in self._tables:
            self._tables[kind] = read_table(self.folder, kind) if (self.folder / kind.file).is_file() else []
        return self._tables[kind]

    @cached_property
    def views(self) -> dict[str, Tensor] | None:
        """A few images and the predictions of each member on them; None if not measured."""
        path = self.folder / "analysis" / "members.safetensors"
        return read_views(path) if path.is_file() else None

    def logs(self, model: str) -> list[list[dict[str, float]]]:
        """The training logs of a model, one row per epoch."""
        return [read_log(path) for path in self._of_trainings(model, LOG)]

    @cached_property
    def trainings(self) -> dict[str, list[Done]]:
        """done.json of each finished training, by model."""
        return {
            model: [read_object(path, Done) for path in self._of_trainings(model, DONE)]
            for model in self.trained
        }

    def seconds(self, model: str) -> list[float]:
        """How long each training of a model took, in seconds."""
        if model == BEST_TEACHER:
            numbers, seconds = [row.seed for row in self.scored(model)], self.seconds(TEACHERS)
            return [seconds[j] for j in numbers if j is not None and j < len(seconds)]
        return [done.seconds for done in self.trainings[model] if done.seconds is not None]

    def times(self) -> dict[str, list[float]]:
        """How long each training took in seconds, by model."""
        return {model: self.seconds(model) for model in self.trained}

    def adopted(self, model: str) -> list[str]:
        """For each training that was taken from another run, the name of that run's folder."""
        depth = 3 if model == TEACHERS else 4  # from the end: RUN/teachers/0, RUN/students/METHOD/0
        paths = [Path(done.adopted).parts for done in self.trainings[model] if done.adopted]
        return [parts[-depth] if len(parts) >= depth else "elsewhere" for parts in paths]

    def _of_trainings(self, model: str, name: str) -> list[Path]:
        folder = self.folder / TEACHERS if model == TEACHERS else self.folder / "students" / model
        paths = folder.glob(f"[0-9]*/{name}")  # students, without the search for their step size
        return sorted(paths, key=lambda path: (len(path.parent.name), path.parent.name))
