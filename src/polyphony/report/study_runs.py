"""Runs of one study that differ only in seeds, and so in teachers and images, read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import fmean, median_low
from typing import Any

from polyphony.metrics import MeanSd
from polyphony.recipe import ROUNDING, FormTable
from polyphony.runs.rows import Score
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS, Dee, mean_of, score_text

Pair = tuple[int, int | None]  # the index of the run, which has its own set of teachers; the student's seed


@dataclass(frozen=True)
class StudyRuns:
    """Runs that differ only in their seeds; each has its own teachers and students."""

    name: str
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """The first run, for settings that all runs share."""
        return self.runs[0]

    @cached_property
    def methods(self) -> list[str]:
        """The methods with scores and the same settings in every run."""
        settings = self.first.recipe.methods
        return [
            name
            for name in self.first.methods
            if all(name in run.methods and run.recipe.methods[name] == settings[name] for run in self.runs)
        ]

    @property
    def left_out(self) -> list[str]:
        """The methods that have no scores or other settings in some runs."""
        names = dict.fromkeys(name for run in self.runs for name in run.methods)
        return [name for name in names if name not in self.methods]

    @property
    def models(self) -> list[str]:
        """The teachers, the best teacher if all runs have it, then the students."""
        best = [BEST_TEACHER] if all(run.scored(BEST_TEACHER) for run in self.runs) else []
        return [TEACHERS, *best, *self.methods]

    def scored(self, model: str, calibration: str = "calibrated", split: str = "test") -> dict[Pair, Score]:
        """A model's rows by set of teachers and seed."""
        return {
            (place, score.seed): score
            for place, run in enumerate(self.runs)
            for score in run.scored(model, split, calibration)
        }

    def column(self, model: str, column: str, calibration: str = "calibrated") -> dict[Pair, float]:
        """A column of a model's test scores by set of teachers and seed, without missing values."""
        values = {pair: getattr(row, column) for pair, row in self.scored(model, calibration).items()}
        return {pair: value for pair, value in values.items() if value is not None}

    def mean(self, model: str, column: str) -> MeanSd:
        """Mean and standard deviation of a column of the calibrated test scores over sets and seeds."""
        return mean_of(self.scored(model).values(), column)

    def text(self, model: str, column: str, calibration: str = "calibrated") -> str:
        values = list(self.column(model, column, calibration).values())
        return score_text(column, values, self.first.teacher_count)

    def dee(self, model: str) -> Dee | None:
        """How many teachers a model is worth: the lower median over sets, and the range over all seeds.

        None without a DEE curve.
        """
        dees = [dee for run in self.runs if (dee := run.dee(model))]
        if not dees:
            return None
        seeds = self.column(model, "dee").values()
        return Dee(median_low([dee.value for dee in dees]), min(seeds), max(seeds), dees[0].teachers)

    def share(self, model: str, read: Callable[[Run, str], float | None]) -> float | None:
        """The mean over runs of a share that `read` returns for a run and a model; None if a run has none."""
        shares = [share for run in self.runs if (share := read(run, model)) is not None]
        return fmean(shares) if len(shares) == len(self.runs) else None

    def diversity_shares(self, model: str) -> dict[Pair, float]:
        """A student's mean-KLD as a share of its own teachers', without sets whose teachers agree."""
        teachers = [run.scored(TEACHERS)[0].kld for run in self.runs]
        klds = self.column(model, "kld")
        return {pair: kld / teachers[pair[0]] for pair, kld in klds.items() if teachers[pair[0]]}

    def best_plain(self, form: FormTable) -> str | None:
        """The plain distillation into a form with the lowest calibrated NLL on validation images, if any."""
        plain = [name for name in self.methods if self.first.perturbation(name) == "clean"]
        same_form = [name for name in plain if self.first.recipe.form_table(name) == form]
        scores = {name: self.scored(name, split="valid").values() for name in same_form}
        nlls = {name: fmean(row.nll for row in rows) for name, rows in scores.items() if rows}
        return min(nlls, key=lambda name: nlls[name], default=None)


def studies(runs: Sequence[Run]) -> list[StudyRuns]:
    """Group runs into studies: their recipes are equal except for seeds, and their teachers differ."""
    groups: list[list[Run]] = []
    for run in runs:
        same_recipe = [group for group in groups if _without_seeds(group[0]) == _without_seeds(run)]
        free = [group for group in same_recipe if not any(_is_same_set(run, other) for other in group)]
        if free:
            free[0].append(run)
        else:
            groups.append([run])
    return [StudyRuns(name, group) for name, group in zip(_names(groups), groups, strict=True)]


def _without_seeds(run: Run) -> dict[str, Any]:
    """A run's recipe without its seeds, its methods and settings that only change rounding."""
    recipe: dict[str, Any] = run.recipe.model_dump(mode="json", exclude={"seeds", "methods", *ROUNDING})
    for table in ("data", "teachers"):
        recipe[table].pop("seed", None)
    return recipe


def _is_same_set(one: Run, other: Run) -> bool:
    """Whether two runs have the same teachers and images; official splits are the same at every data.seed."""
    first, second = (getattr(run.recipe.teachers, "seed", 0) for run in (one, other))
    same_images = one.recipe.data.seed == other.recipe.data.seed or one.facts.data == other.facts.data
    return first == second and same_images


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A unique name for each group: its recipe's, the common start of its folders' names, or its folders."""
    recipes, folders = [runs[0].recipe.name for runs in groups], [_prefix(runs) for runs in groups]
    for names in (recipes, folders):
        if len(set(names)) == len(names) and all(names):
            return names
    return [", ".join(str(run.folder) for run in runs) for runs in groups]


def _prefix(runs: Sequence[Run]) -> str:
    """The words, separated by dashes, that all folders' names begin with."""
    columns = zip(*(run.folder.resolve().name.split("-") for run in runs), strict=False)
    return "-".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns))
