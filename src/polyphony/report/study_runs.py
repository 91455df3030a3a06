"""Runs of one study with different teachers and images, and the paired differences of their methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import fmean, median_low
from typing import Any

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.recipe import ROUNDING, FormTable, Recipe
from polyphony.runs.rows import Score
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, CALIBRATIONS, TEACHERS, Dee, mean_of, score_text

Pair = tuple[int, int | None]  # which set of teachers, and which seed of the student
_PLAINER = {"clean": 0, "gaussian": 1}  # perturbations that others are compared with


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
        mine = self.first.recipe.methods
        return [
            name
            for name in self.first.methods
            if all(name in run.methods and run.recipe.methods[name] == mine[name] for run in self.runs)
        ]

    @property
    def left_out(self) -> list[str]:
        """The methods without scores or with other settings in some runs."""
        every = dict.fromkeys(name for run in self.runs for name in run.methods)
        return [name for name in every if name not in self.methods]

    @property
    def models(self) -> list[str]:
        """The teachers, the best one alone where all runs have it, then the students."""
        best = [BEST_TEACHER] if all(run.scored(BEST_TEACHER) for run in self.runs) else []
        return [TEACHERS, *best, *self.methods]

    def scored(self, model: str, calibration: str = "calibrated", split: str = "test") -> dict[Pair, Score]:
        """A model's rows by set and seed."""
        return {
            (place, score.seed): score
            for place, run in enumerate(self.runs)
            for score in run.scored(model, split, calibration)
        }

    def column(self, model: str, column: str, calibration: str = "calibrated") -> dict[Pair, float]:
        """A column of a model's test scores by set and seed, where it is not missing."""
        each = [run.by_seed(model, column, calibration) for run in self.runs]
        return {(place, seed): value for place, mine in enumerate(each) for seed, value in mine.items()}

    def mean(self, model: str, column: str) -> MeanSd:
        """Mean and standard deviation of a column of the calibrated test scores over sets and seeds."""
        return mean_of(self.scored(model).values(), column)

    def text(self, model: str, column: str, calibration: str = "calibrated") -> str:
        """A model's score as text."""
        values = list(self.column(model, column, calibration).values())
        return score_text(column, values, self.first.teacher_count)

    def dee(self, model: str) -> Dee | None:
        """How many teachers a model is worth: the lower median over sets, and the range over all seeds."""
        found = [dee for run in self.runs if (dee := run.dee(model))]
        seeds = self.column(model, "dee").values()
        if not found:
            return None
        return Dee(median_low([dee.value for dee in found]), min(seeds), max(seeds), found[0].teachers)

    def share(self, model: str, read: Callable[[Run, str], float | None]) -> float | None:
        """The mean of a share over runs; None if a run has none."""
        found = [read(run, model) for run in self.runs]
        known = [share for share in found if share is not None]
        return fmean(known) if len(known) == len(found) else None

    def kept(self, model: str) -> dict[Pair, float]:
        """A student's mean-KLD as a share of its own teachers', where these disagree."""
        teachers = [run.scored(TEACHERS)[0].kld for run in self.runs]
        mine = self.column(model, "kld")
        return {pair: kld / teachers[pair[0]] for pair, kld in mine.items() if teachers[pair[0]]}

    def best_plain(self, form: FormTable) -> str | None:
        """The plain distillation into a form that has the least calibrated NLL on validation images."""
        plain = [name for name in self.methods if self.first.perturbation(name) == "clean"]
        same = [name for name in plain if self.first.recipe.form_table(name) == form]
        rows = {name: self.scored(name, split="valid").values() for name in same}
        known = {name: fmean(row.nll for row in each) for name, each in rows.items() if each}
        return min(known, key=lambda name: known[name], default=None)


@dataclass(frozen=True)
class Judged:
    """A quantity by which two methods are compared; `better` is 1 if more is, −1 if less, 0 if neither."""

    name: str
    heading: str
    better: int
    read: Callable[[StudyRuns, str], dict[Pair, float]]
    shown: bool = True  # in the table of differences; the file has all


def _column(column: str, calibration: str = CALIBRATIONS[0]) -> Callable[[StudyRuns, str], dict[Pair, float]]:
    return lambda study, model: study.column(model, column, calibration)


JUDGED = (
    Judged("nll", "NLL", -1, _column("nll")),
    Judged("nll_standard", "NLL, as predicted", -1, _column("nll", "standard")),
    Judged("dee", "DEE", 1, _column("dee"), shown=False),
    Judged("kept", "diversity kept", 0, StudyRuns.kept, shown=False),
    Judged("distance", "distance", -1, _column("distance"), shown=False),
    Judged("voice", "follows own teacher (nats)", 1, _column("voice")),
    Judged("acc", "accuracy", 1, _column("acc")),
)


@dataclass(frozen=True)
class Difference:
    """The paired difference between two methods; `ahead` is the number of pairs in which the first is better.

    Pairs of one run share their teachers; `over_sets` is the difference over the means of each run, if there
    are several.
    """

    study: str
    method: str
    reference: str
    words: str  # "method − reference"
    judged: Judged
    paired: MeanSd
    ahead: int
    known: int  # pairs with a defined difference: not if both DEEs are past the curve
    over_sets: MeanSd | None

    @property
    def text(self) -> str:
        """ "−0.021 ± 0.019": the mean difference and half of its 95 % interval."""
        return _signed(self.paired)

    @property
    def over_sets_text(self) -> str:
        """The same over sets of teachers."""
        return _signed(self.over_sets) if self.over_sets else "–"

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero, and that over sets of teachers too where there are several."""
        return all(abs(each.mean) > each.half for each in (self.paired, self.over_sets) if each)


def _signed(value: MeanSd) -> str:
    return f"{value.mean:+.3f} ± {value.half:.3f}".replace("-", "−") if math.isfinite(value.mean) else "–"


def studies(runs: Sequence[Run]) -> list[StudyRuns]:
    """Runs, those together that are alike but for their seeds; a second one of the same set is another."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        alike = _but_for_seeds(run)
        known = [each for (key, _), found in groups.items() if key == alike for each in found]
        twins = sum(_is_same_set(run, each) for each in known)
        groups.setdefault((alike, twins), []).append(run)
    found = list(groups.values())
    return [StudyRuns(name, each) for name, each in zip(_names(found), found, strict=True)]


def _but_for_seeds(run: Run) -> str:
    recipe: dict[str, Any] = run.recipe.model_dump(mode="json", exclude={"seeds", "methods", *ROUNDING})
    for table in ("data", "teachers"):
        recipe[table].pop("seed", None)
    return str(recipe)


def _is_same_set(one: Run, other: Run) -> bool:
    """Whether two runs have one seed of teachers, and one of images, or the same images at several seeds."""
    (data, teachers), (others_data, others_teachers) = (_seeds(each) for each in (one, other))
    same_images = data == others_data or one.facts.data == other.facts.data
    return teachers == others_teachers and same_images


def _seeds(run: Run) -> tuple[int, int]:
    return run.recipe.data.seed, getattr(run.recipe.teachers, "seed", 0)


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each: its recipe's, or what its folders' names begin with where two have the same recipe."""
    names = [runs[0].recipe.name for runs in groups]
    folders = [[run.folder.resolve().name.split("-") for run in runs] for runs in groups]
    begun = ["-".join(_in_common(each)) for each in folders]
    for found in (names, begun):
        if len(set(found)) == len(found) and all(found):
            return found
    return [", ".join(str(run.folder) for run in runs) for runs in groups]


def _in_common(names: Sequence[Sequence[str]]) -> list[str]:
    alike = takewhile(lambda words: len(set(words)) == 1, zip(*names, strict=False))
    return [words[0] for words in alike]


def differences(study: StudyRuns) -> list[Difference]:
    """Every method against what it is to be compared with, where there are at least two pairs."""
    found = (
        _difference(study, method, reference, judged)
        for method in study.methods
        for reference in references(study, method)
        for judged in JUDGED
    )
    return [each for each in found if each is not None]


def references(study: StudyRuns, method: str) -> list[str]:
    """The references of a method: the same with a plainer perturbation, and the best plain distillation."""
    plainer = [other for other in study.methods if _is_plainer(study.first.recipe, other, method)]
    if study.first.perturbation(method) in (None, "clean"):
        return plainer
    best = study.best_plain(study.first.recipe.form_table(method))
    return plainer if best is None or best in plainer else [*plainer, best]


def _is_plainer(recipe: Recipe, name: str, than: str) -> bool:
    """Whether a method is a plainer version of another at the same settings."""
    plain, special = (recipe.methods[each].label for each in (name, than))
    mine, others = ([recipe.setting(each, key) for key in ("alpha", "temperature")] for each in (name, than))
    passes, shares = ([recipe.setting(each, key) for each in (name, than)] for key in ("passes", "share"))
    if not plain or not special or mine != others:
        return False
    if recipe.form_table(name) != recipe.form_table(than):
        return plain == special == "clean" and recipe.form_table(name).label == "single"
    if shares[0] != shares[1]:  # of images without labels
        return plain == special and passes[0] == passes[1] and shares[0] == 0
    if plain == special:
        return passes == ["two", "one"]
    return _PLAINER.get(plain, 2) < _PLAINER.get(special, 2)


def _difference(study: StudyRuns, method: str, reference: str, judged: Judged) -> Difference | None:
    mine, theirs = (judged.read(study, name) for name in (method, reference))
    pairs = [pair for pair in mine if pair in theirs]
    if len(pairs) < 2:
        return None
    apart = {pair: mine[pair] - theirs[pair] for pair in pairs}
    ahead = sum(judged.better * each > 0 for each in apart.values())
    known = sum(not math.isnan(each) for each in apart.values())
    words, paired = _words(study.first.recipe, method, reference), metrics.paired(list(apart.values()))
    return Difference(study.name, method, reference, words, judged, paired, ahead, known, _over_sets(apart))


def _words(recipe: Recipe, method: str, reference: str) -> str:
    """ "method − reference", with their epochs if a method sets its own and they differ."""
    epochs = {name: recipe.schedule(name).epochs for name in (method, reference)}
    own = len(set(epochs.values())) > 1 and {name for name in epochs if recipe.methods[name].epochs}
    return " − ".join(f"{name} ({epochs[name]} epochs)" if own and name in own else name for name in epochs)


def _over_sets(apart: Mapping[Pair, float]) -> MeanSd | None:
    """The difference over the means of each run; None for one run."""
    sets = [[each for pair, each in apart.items() if pair[0] == at] for at in {place for place, _ in apart}]
    return metrics.paired([sum(each) / len(each) for each in sets]) if len(sets) > 1 else None
