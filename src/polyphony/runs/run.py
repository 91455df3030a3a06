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
from polyphony.runs.store import Done, Facts, FileError, Row, damaged, read_log, read_object, read_table


@dataclass(frozen=True)
class Run:
    """A run folder with scores. Each file is read and checked once, on first use; models are never loaded."""

    folder: Path
    _tables: dict[type[Any], list[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in a folder; raises a StoreError if there is none or it is not evaluated."""
        run = cls(folder)
        path = folder / Score.file
        for needed in (folder / "recipe.json", path):
            if not needed.is_file():
                raise FileError(needed, "is not there")
        run.check_models(path, [score.model for score in run.scores])
        if not run.methods or not run.scored(TEACHERS):
            raise FileError(path, "has no scores of students and teachers on test")
        for model, kind in product(run.models, CALIBRATIONS):
            if not run.scored(model, calibration=kind):
                raise FileError(path, f"has no {kind} scores of {model} on test")
        return run

    def check_models(self, path: Path, models: Iterable[str]) -> None:
        """Raise if a table names models that the recipe does not have."""
        for model in models:
            if model not in (TEACHERS, BEST_TEACHER, *self.recipe.methods):
                raise damaged(path, f"recipe.json has no method '{model}'")

    @cached_property
    def facts(self) -> Facts:
        """recipe.json."""
        return read_object(self.folder / "recipe.json", Facts)

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / "recipe.json"
        try:
            return check(self.facts.recipe, path.name, code=False)
        except RecipeError as error:
            raise damaged(path, error) from None

    @property
    def members(self) -> int:
        """The number of teachers in the ensemble; extra teachers only extend the DEE curve."""
        return self.recipe.members

    @property
    def teacher_count(self) -> int:
        """The number of teachers behind the DEE curve."""
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
        """The teachers, the best single teacher if it was scored, then the students."""
        best = [BEST_TEACHER] if self.scored(BEST_TEACHER) else []
        return [TEACHERS, *best, *self.methods]

    @property
    def trained(self) -> list[str]:
        """The models that were trained: the teachers, and the students of each method."""
        return [TEACHERS, *self.methods]

    @property
    def baseline(self) -> str | None:
        """The single-network baseline: the best teacher, or the only one; None in early runs."""
        return BEST_TEACHER if self.scored(BEST_TEACHER) else TEACHERS if self.members == 1 else None

    def perturbation(self, method: str) -> str | None:
        """The perturbation of a method ("clean", "ods", …); None without teachers."""
        return self.recipe.methods[method].label or None

    def methods_with(self, perturbation: str | None) -> list[str]:
        return [name for name in self.methods if self.perturbation(name) == perturbation]

    def members_of(self, model: str) -> int:
        """The number of members of a model when it predicts, without extra teachers."""
        if model in (TEACHERS, BEST_TEACHER):
            return self.members if model == TEACHERS else 1
        saved = [each.members for (name, _, _), each in self.predictions.items() if name == model]
        return saved[0] if saved else self.recipe.form_table(model).predictors(self.members)

    def scored(self, model: str, split: str = "test", calibration: str = "calibrated") -> list[Score]:
        """A model's rows, one a seed."""
        return select(self.scores, model, split, calibration)

    def mean(self, model: str, column: str) -> MeanSd:
        """Mean and standard deviation over seeds of a column of the calibrated test scores."""
        return mean_of(self.scored(model), column)

    def by_seed(self, model: str, column: str, calibration: str = "calibrated") -> dict[int | None, float]:
        """A column of a model's test scores by seed, without missing values."""
        found = {score.seed: getattr(score, column) for score in self.scored(model, calibration=calibration)}
        return {seed: value for seed, value in found.items() if value is not None}

    def text(self, model: str, column: str, calibration: str = "calibrated") -> str:
        """A model's test score over its seeds, for people."""
        values = self.by_seed(model, column, calibration).values()
        return score_text(column, list(values), self.teacher_count)

    def params(self, model: str) -> int:
        """The number of parameters of a model; for the teachers, of all in the ensemble."""
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
        others. None for a student without a member for each teacher, or without teachers.
        """
        if model not in self.methods or self.perturbation(model) is None:
            return None
        voices, most = self.by_seed(model, "voice").values(), self.mean(TEACHERS, "kld").mean
        return fmean(voices) / most if voices and most else None

    def kept(self, model: str) -> float | None:
        """A student's mean-KLD as a share of the teachers'.

        None for one network, and for a student that is worse than one teacher: its members are diverse
        because they are wrong in different ways.
        """
        dee, mine, most = self.dee(model), self.mean(model, "kld").mean, self.mean(TEACHERS, "kld").mean
        worse = dee is not None and dee.value < 1
        return mine / most if mine and most and not worse else None

    def price(self, model: str, batch: int | None = None) -> Latency | None:
        """What a model's answers cost for a batch (default: the smallest measured)."""
        rows = [row for row in self.table(Latency) if row.model == model and batch in (None, row.batch)]
        return min(rows, key=lambda row: row.batch, default=None)

    def times_one_teacher(self, model: str) -> float | None:
        """A model's milliseconds as a multiple of one teacher's, if both were measured."""
        mine, one = self.price(model), self.price(self.baseline or "")
        return mine.milliseconds / one.milliseconds if mine and one else None

    @cached_property
    def curves(self) -> dict[str, list[float]]:
        """Test NLL of deep ensembles of size 0, 1, 2, … for both calibrations, as the study saved it."""
        rows = [row for row in self.table(EnsembleNll) if row.split == "test"]
        found = {kind: [row for row in rows if row.calibration == kind] for kind in CALIBRATIONS}
        for kind, curve in found.items() if rows else ():
            if [row.size for row in curve] != list(range(self.teacher_count + 1)):
                raise damaged(self.folder / EnsembleNll.file, f"the {kind} curve has other sizes")
        return {kind: [row.nll for row in curve] for kind, curve in found.items() if curve}

    @cached_property
    def predictions(self) -> dict[tuple[str, int | None, str], Predictions]:
        """Predictions by model, seed and split, without corrupted images; with the extra teachers."""
        found: dict[tuple[str, int | None, str], Predictions] = {}
        members, classes = {TEACHERS: self.members}, 0
        for model, seed, path in self._prediction_files():
            each = found[model, seed, path.stem] = read_predictions(path)
            classes = classes or each.logits.shape[2]
            mine = each.first(self.members) if model == TEACHERS else each
            expected = members.setdefault(model, each.members), classes
            if (mine.members, mine.logits.shape[2]) != expected:
                raise damaged(path, "it has other members or classes than the rest")
        return found

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
            together = self.ensemble(TEACHERS, split).values()
            numbers = [row.seed for row in self.scored(model)]
            return {j: each.member(j) for each in together for j in numbers if j is not None}
        return {
            seed: each.first(self.members) if model == TEACHERS else each
            for (name, seed, where), each in self.predictions.items()
            if (name, where) == (model, split)
        }

    def pooled(self, model: str, split: str) -> Predictions | None:
        """A model's predictions with the images of all seeds joined, [m s·n k]; None if none are saved."""
        each = self.ensemble(model, split)
        return Predictions.joined(list(each.values())) if each else None

    @cached_property
    def temperatures(self) -> dict[tuple[str, int | None], float]:
        """The temperatures that the study fitted on validation, by model and seed."""
        found = {(row.model, row.seed): row.temperature for row in self.table(Temperature)}
        if not all(temperature > 0 for temperature in found.values()):
            raise damaged(self.folder / Temperature.file, "a temperature is not above 0")
        return found

    def log_probs(self, model: str, calibration: str) -> Tensor | None:
        """Log-probabilities of the test images in the order of `pooled`; if calibrated, at each seed's
        temperature. None if predictions or temperatures are missing. [s·n k]"""
        found = []
        for seed, each in self.ensemble(model, "test").items():
            temperature = 1.0 if calibration == "standard" else self.temperatures.get((model, seed))
            if temperature is None:
                return None
            found.append(each.log_probs(temperature))
        return torch.cat(found) if found else None

    @cached_property
    def moved(self) -> list[tuple[list[str], Predictions]]:
        """The teachers' predictions on perturbed training images, with the methods that share them."""
        groups: list[tuple[list[str], Predictions]] = []
        for method in self.methods:
            saved = self.pooled(TEACHERS, f"train+{method}")
            if saved is None:
                continue
            same = [names for names, each in groups if each.logits.equal(saved.logits)]
            if same:
                same[0].append(method)
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
        return [read_log(path) for path in self._of_trainings(model, "log.jsonl")]

    @cached_property
    def trainings(self) -> dict[str, list[Done]]:
        """done.json of each finished training, by model."""
        return {
            model: [read_object(path, Done) for path in self._of_trainings(model, "done.json")]
            for model in self.trained
        }

    def seconds(self, model: str) -> list[float]:
        """How long each training of a model took."""
        if model == BEST_TEACHER:
            numbers, taught = [row.seed for row in self.scored(model)], self.seconds(TEACHERS)
            return [taught[j] for j in numbers if j is not None and j < len(taught)]
        return [each.seconds for each in self.trainings[model] if each.seconds is not None]

    def times(self) -> dict[str, list[float]]:
        """How long each model's trainings took."""
        return {model: self.seconds(model) for model in self.trained}

    def adopted(self, model: str) -> list[str]:
        """For each training taken over from another run, the name of that run folder."""
        depth = 3 if model == TEACHERS else 4  # from the end: RUN/teachers/0, RUN/students/METHOD/0
        parts = [Path(each.adopted).parts for each in self.trainings[model] if each.adopted]
        return [each[-depth] if len(each) >= depth else "elsewhere" for each in parts]

    def _of_trainings(self, model: str, name: str) -> list[Path]:
        folder = self.folder / TEACHERS if model == TEACHERS else self.folder / "students" / model
        return sorted(folder.glob(f"*/{name}"), key=lambda path: (len(path.parent.name), path.parent.name))
