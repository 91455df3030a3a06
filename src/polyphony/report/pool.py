"""Runs of one study with other teachers and images, taken together; methods judged by paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import fmean
from typing import Any

from polyphony import metrics
from polyphony.metrics import Paired
from polyphony.recipe import FormTable, Recipe
from polyphony.report.run import Run
from polyphony.rows import Score
from polyphony.scores import CALIBRATIONS, TEACHERS, score_text

Pair = tuple[int, int | None]  # which set of teachers, and which seed of the student
_PLAINER = {"clean": 0, "gaussian": 1}  # perturbations that others are compared with


@dataclass(frozen=True)
class Pool:
    """Runs that are alike but for their seeds: each a set of teachers, with students of its own."""

    name: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """Any of them, for what they have in common."""
        return self.runs[0]

    @cached_property
    def methods(self) -> list[str]:
        """The methods that every run has scores of."""
        return [name for name in self.first.methods if all(name in run.methods for run in self.runs)]

    @property
    def models(self) -> list[str]:
        """The teachers, then the students."""
        return [TEACHERS, *self.methods]

    def scored(self, model: str, calibration: str = "calibrated", split: str = "test") -> dict[Pair, Score]:
        """A model's rows by set and seed."""
        return {
            (place, score.seed): score
            for place, run in enumerate(self.runs)
            for score in run.scored(model, split, calibration)
        }

    def values(self, model: str, column: str, calibration: str = "calibrated") -> list[float | None]:
        """A column of a model's test scores, over sets and seeds."""
        return [getattr(score, column) for score in self.scored(model, calibration).values()]

    def mean(self, model: str, column: str) -> metrics.MeanSd:
        """Mean and standard deviation of a column of the calibrated test scores over sets and seeds."""
        return metrics.mean_sd([math.nan if value is None else value for value in self.values(model, column)])

    def text(self, model: str, column: str, calibration: str = "calibrated") -> str:
        """A model's score for people."""
        return score_text(column, self.values(model, column, calibration), self.first.teacher_count)

    def kept(self, model: str) -> dict[Pair, float]:
        """A student's mean-KLD as a share of its own teachers', where these disagree."""
        shares = ((pair, score, self._teachers(pair)) for pair, score in self.scored(model).items())
        return {pair: score.kld / teachers.kld for pair, score, teachers in shares if teachers.kld}

    def _teachers(self, pair: Pair) -> Score:
        return self.runs[pair[0]].scored(TEACHERS)[0]

    def best_plain(self, form: FormTable) -> str | None:
        """The plain distillation into a form that has the least calibrated NLL on validation images."""
        recipe = self.first.recipe
        plain = {
            name: [score.nll for score in self.scored(name, split="valid").values()]
            for name in self.methods
            if self.first.perturbation(name) == "clean" and recipe.form_table(name) == form
        }
        known = {name: fmean(values) for name, values in plain.items() if values}
        return min(known, key=lambda name: known[name]) if known else None


@dataclass(frozen=True)
class Judged:
    """A quantity by which two methods are compared; `better` is 1 if more is, −1 if less, 0 if neither."""

    name: str
    heading: str
    better: int
    read: Callable[[Pool, str], dict[Pair, float]]


def _column(column: str, calibration: str = CALIBRATIONS[0]) -> Callable[[Pool, str], dict[Pair, float]]:
    def read(pool: Pool, model: str) -> dict[Pair, float]:
        found = {
            pair: getattr(score, column)
            for pair, score in pool.scored(model, calibration=calibration).items()
        }
        return {pair: value for pair, value in found.items() if value is not None}

    return read


JUDGED = (
    Judged("nll", "NLL, calibrated", -1, _column("nll")),
    Judged("nll_standard", "NLL, as predicted", -1, _column("nll", "standard")),
    Judged("dee", "DEE", 1, _column("dee")),
    Judged("kept", "diversity kept", 0, Pool.kept),
    Judged("distance", "distance", -1, _column("distance")),
    Judged("voice", "voice", 1, _column("voice")),
    Judged("acc", "accuracy", 1, _column("acc")),
)


@dataclass(frozen=True)
class Difference:
    """By how much a method differs from another, paired; `ahead` says in how many pairs it is better."""

    study: str
    method: str
    reference: str
    judged: Judged
    paired: Paired
    ahead: int

    @property
    def text(self) -> str:
        """For people: the mean difference with its 95 % interval, and the count where one side is better."""
        count = f"{self.ahead} of {self.paired.n}" if self.judged.better else ""
        if not math.isfinite(self.paired.mean):
            return count
        mean = f"{self.paired.mean:+.3f}".replace("-", "−")
        spread = "" if math.isnan(self.paired.half) else f" ± {self.paired.half:.3f}"
        return f"{mean}{spread}" + (f" ({count})" if count else "")


def pools(runs: Sequence[Run]) -> list[Pool]:
    """Runs, those together that are alike but for their seeds; a second one of the same seeds is another."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        alike = _but_for_seeds(run)
        known = [each for (key, _), found in groups.items() if key == alike for each in found]
        twins = sum(_seeds(run) == _seeds(each) for each in known)
        groups.setdefault((alike, twins), []).append(run)
    return [Pool(name, tuple(each)) for name, each in zip(_names(groups), groups.values(), strict=True)]


def _but_for_seeds(run: Run) -> str:
    recipe: dict[str, Any] = run.recipe.model_dump(mode="json", exclude={"seeds", "methods"})
    for table in ("data", "teachers"):
        recipe[table].pop("seed", None)
    return str(recipe)


def _seeds(run: Run) -> tuple[int, int]:
    return run.recipe.data.seed, getattr(run.recipe.teachers, "seed", 0)


def _names(groups: dict[tuple[str, int], list[Run]]) -> list[str]:
    """A name for each: its recipe's, or what its folders' names begin with where two have the same recipe."""
    names = [runs[0].name for runs in groups.values()]
    if len(set(names)) == len(names):
        return names
    folders = [[run.folder.resolve().name for run in runs] for runs in groups.values()]
    begun = ["-".join(_in_common([name.split("-") for name in each])) for each in folders]
    if len(set(begun)) == len(begun) and all(begun):
        return begun
    return [", ".join(str(run.folder) for run in runs) for runs in groups.values()]


def _in_common(names: Sequence[Sequence[str]]) -> list[str]:
    alike = takewhile(lambda words: len(set(words)) == 1, zip(*names, strict=False))
    return [words[0] for words in alike]


def references(pool: Pool, method: str) -> list[str]:
    """What a method is compared with: the same without what is special about it, and the best plain one."""
    plainer = [other for other in pool.methods if _is_plainer(pool.first.recipe, other, method)]
    if pool.first.perturbation(method) in (None, "clean"):
        return plainer
    best = pool.best_plain(pool.first.recipe.form_table(method))
    return plainer if best is None or best in plainer else [*plainer, best]


def _is_plainer(recipe: Recipe, name: str, than: str) -> bool:
    """Whether a method is another one at the same temperature with less to it."""
    plain, special = (recipe.methods[each].label for each in (name, than))
    same = all(_setting(recipe, name, key) == _setting(recipe, than, key) for key in ("temperature", "alpha"))
    if not (plain and special and same):
        return False
    if recipe.form_table(name) != recipe.form_table(than):
        return plain == special == "clean" and recipe.form_table(name).label == "single"
    if plain == special:
        return [_setting(recipe, each, "passes") for each in (name, than)] == ["two", "one"]
    return _PLAINER.get(plain, 2) < _PLAINER.get(special, 2)


def _setting(recipe: Recipe, method: str, key: str) -> Any:
    own = getattr(recipe.methods[method], key)
    return getattr(recipe.student, key) if own is None else own


def differences(pool: Pool) -> list[Difference]:
    """Every method against what it is to be compared with, where there are at least two pairs."""
    found = (
        _difference(pool, method, reference, judged)
        for method in pool.methods
        for reference in references(pool, method)
        for judged in JUDGED
    )
    return [each for each in found if each is not None]


def _difference(pool: Pool, method: str, reference: str, judged: Judged) -> Difference | None:
    mine, theirs = (judged.read(pool, name) for name in (method, reference))
    pairs = [pair for pair in mine if pair in theirs]
    if len(pairs) < 2:
        return None
    apart = [0.0 if mine[pair] == theirs[pair] else mine[pair] - theirs[pair] for pair in pairs]
    ahead = sum(judged.better * each > 0 for each in apart)
    return Difference(pool.name, method, reference, judged, metrics.paired(apart), ahead)
