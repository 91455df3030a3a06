"""The reader of a sweep's folder: its points with their scores over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.recipe.points import PARAMETERS, Value, text_of, toml
from polyphony.report.tables import by
from polyphony.runs.rows import SweepScore, TeacherScore, headings
from polyphony.runs.run import Run
from polyphony.runs.scores import JUDGE, TEACHERS
from polyphony.runs.store import SWEEP_FILE, FileError, SweepFacts, damaged_file, read_object

SYMBOLS = {"alpha": "α", "temperature": "τ", "step_size": "η"}
OTHER = "standard"  # the calibration that is shown too, but does not rank the points


@dataclass(frozen=True)
class ScoredPoint:
    """A point of the sweep: its settings, and its validation scores over seeds."""

    name: str
    settings: dict[str, Value]
    scores: dict[str, dict[str, MeanSd]]  # by calibration and column

    @property
    def nll(self) -> MeanSd:
        """The calibrated NLL, which ranks the points."""
        return self.scores[JUDGE]["nll"]

    @property
    def words(self) -> str:
        """ "α 0.9, τ 4, η 1/255" """
        return in_words(self.settings)


@dataclass(frozen=True)
class SweepRun(Run):
    """The folder of a finished sweep."""

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Whether a folder is the folder of a sweep, finished or not."""
        return (folder / SWEEP_FILE).is_file()

    @classmethod
    def open(cls, folder: Path) -> SweepRun:
        """The sweep in a folder; raises a StoreError if it is not finished."""
        run, path = cls(folder), folder / SweepScore.file
        if not path.is_file():
            raise FileError(path, "is not there: the sweep is not finished")
        if not run.ranked:
            raise FileError(path, "has no rows")
        run.check_models(path, run.methods)
        return run

    @cached_property
    def sweep(self) -> SweepFacts:
        """sweep.json: the recipe's name, the method, and how its settings were searched."""
        return read_object(self.folder / SWEEP_FILE, SweepFacts)

    @property
    def method(self) -> str:
        return self.sweep.method

    @property
    def is_search(self) -> bool:
        """Whether optuna proposed the points; otherwise they are a grid."""
        return self.sweep.trials is not None

    @cached_property
    def points(self) -> list[ScoredPoint]:
        """All points that have scores, in the order of sweep.csv; raises if one lacks scores."""
        points = []
        for name, rows in by(self.table(SweepScore), "model").items():
            kinds = by(rows, "calibration")
            if not {JUDGE, OTHER} <= kinds.keys():
                raise damaged_file(self.folder / SweepScore.file, f"{name} lacks a calibration")
            settings = {parameter: getattr(rows[0], parameter) for parameter in PARAMETERS}
            scores = {kind: _scores(kinds[kind]) for kind in (JUDGE, OTHER)}
            points.append(ScoredPoint(name, settings, scores))
        return points

    @cached_property
    def methods(self) -> list[str]:
        return [point.name for point in self.points]

    @cached_property
    def ranked(self) -> list[ScoredPoint]:
        """The points by calibrated validation NLL, the lowest first."""
        return sorted(self.points, key=lambda point: point.nll.mean)

    @property
    def best(self) -> ScoredPoint:
        """The point with the lowest calibrated validation NLL."""
        return self.ranked[0]

    @property
    def close(self) -> list[ScoredPoint]:
        """The other points whose NLL is at most one standard deviation (of the best, over seeds) higher."""
        limit = self.best.nll.mean + self.best.nll.sd
        return [point for point in self.ranked[1:] if point.nll.mean <= limit]

    @property
    def recipe_point(self) -> ScoredPoint | None:
        """The point with the recipe's own settings; None if it has no scores."""
        return next((point for point in self.points if _without_none(point.settings) == self.sweep.own), None)

    @property
    def diverged(self) -> list[str]:
        """Points without scores: their loss became NaN."""
        return [name for name in self.recipe.methods if name not in self.methods]

    @cached_property
    def values(self) -> dict[str, list[Value]]:
        """The values of each parameter in ascending order; `match` comes last."""
        values = {name: {point.settings[name] for point in self.points} for name in PARAMETERS}
        return {name: sorted(values[name], key=_order) for name in PARAMETERS}

    def is_inside(self, name: str, value: float) -> bool:
        """Whether the sweep has a smaller and a larger value of a parameter, diverged points included."""
        values = [self.recipe.setting(point, name) for point in self.recipe.methods]
        numbers = [number for number in values if isinstance(number, float)]
        return min(numbers) < value < max(numbers)

    @property
    def varied(self) -> list[str]:
        """The parameters that have several values."""
        return [name for name, values in self.values.items() if len(values) > 1]

    @property
    def teachers_nll(self) -> float | None:
        """The teachers' calibrated NLL on the same images, if they were scored."""
        return next((row.nll for row in self.table(TeacherScore) if row.calibration == JUDGE), None)

    def times(self) -> dict[str, list[float]]:
        """The seconds of each training of the teachers, and of all points together."""
        points = [seconds for name in self.methods for seconds in self.seconds(name)]
        return {TEACHERS: self.seconds(TEACHERS), "points": points}

    def line(self, point: ScoredPoint) -> str:
        """The method at a point as a line of a recipe's [methods]."""
        settings = _without_none(point.settings)
        if "step_size" in settings:
            settings["step_size"] = text_of(settings["step_size"], "step_size")
        return f"{self.method} = {toml({**self.sweep.settings, **settings})}"


def in_words(settings: dict[str, Value]) -> str:
    """ "α 0.9, τ 4, η 1/255" """
    return ", ".join(
        f"{SYMBOLS[name]} {text_of(value, name)}" for name, value in _without_none(settings).items()
    )


def _scores(rows: Sequence[SweepScore]) -> dict[str, MeanSd]:
    return {name: metrics.mean_sd([getattr(row, name) for row in rows]) for name in headings(SweepScore)}


def _without_none(settings: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in settings.items() if value is not None}


def _order(value: Value) -> tuple[bool, float]:
    """A sort key: numbers in ascending order, then `match` and None."""
    return (not isinstance(value, float), value if isinstance(value, float) else 0.0)
