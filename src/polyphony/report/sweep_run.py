"""The folder of a sweep: its points over their seeds, best first."""

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
from polyphony.runs.store import Asked, FileError, damaged, read_object

SYMBOLS = {"alpha": "α", "temperature": "τ", "step_size": "η"}
OTHER = "standard"  # the calibration that does not rank the points


@dataclass(frozen=True)
class Tried:
    """A point: its settings, and its validation scores over seeds, by calibration and column."""

    name: str
    settings: dict[str, Value]
    scores: dict[str, dict[str, MeanSd]]

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
        """Whether a folder is a sweep's, finished or not."""
        return (folder / "sweep.json").is_file()

    @classmethod
    def open(cls, folder: Path) -> SweepRun:
        """The sweep in a folder; raises a StoreError if it is not finished."""
        run, path = cls(folder), folder / SweepScore.file
        if not path.is_file():
            raise FileError(path, "is not there: the sweep is not at its end")
        if not run.ranked:
            raise FileError(path, "has no rows")
        run.check_models(path, run.methods)
        return run

    @cached_property
    def asked(self) -> Asked:
        """sweep.json: what was swept, and how."""
        return read_object(self.folder / "sweep.json", Asked)

    @property
    def method(self) -> str:
        return self.asked.method

    @property
    def is_search(self) -> bool:
        """Whether the points were proposed by optuna, not laid out in a grid."""
        return self.asked.trials is not None

    @cached_property
    def tried(self) -> list[Tried]:
        """All points that have scores, in the order of the file."""
        points = []
        for name, rows in by(self.table(SweepScore), "model").items():
            kinds = by(rows, "calibration")
            if not {JUDGE, OTHER} <= kinds.keys():
                raise damaged(self.folder / SweepScore.file, f"{name} lacks a calibration")
            settings = {parameter: getattr(rows[0], parameter) for parameter in PARAMETERS}
            points.append(Tried(name, settings, {kind: _scores(kinds[kind]) for kind in (JUDGE, OTHER)}))
        return points

    @cached_property
    def methods(self) -> list[str]:
        return [each.name for each in self.tried]

    @cached_property
    def ranked(self) -> list[Tried]:
        """The points by calibrated validation NLL, the lowest first."""
        return sorted(self.tried, key=lambda each: each.nll.mean)

    @property
    def best(self) -> Tried:
        """The point with the lowest calibrated validation NLL."""
        return self.ranked[0]

    @property
    def close(self) -> list[Tried]:
        """The others whose NLL is within one standard deviation (the best's, over seeds) of the best."""
        return [each for each in self.ranked[1:] if each.nll.mean <= self.best.nll.mean + self.best.nll.sd]

    @property
    def own(self) -> Tried | None:
        """The point with the recipe's own settings, if it was tried."""
        return next((each for each in self.tried if _set(each.settings) == self.asked.own), None)

    @property
    def diverged(self) -> list[str]:
        """Points without scores: their loss became NaN."""
        return [name for name in self.recipe.methods if name not in self.methods]

    @cached_property
    def values(self) -> dict[str, list[Value]]:
        """The values of each parameter that were tried, in order; `match` comes last."""
        found = {name: {each.settings[name] for each in self.tried} for name in PARAMETERS}
        return {name: sorted(values, key=_order) for name, values in found.items()}

    def has_beyond(self, name: str, value: float) -> bool:
        """Whether the sweep has a smaller and a larger value of a parameter, diverged points included."""
        every = [self.recipe.setting(point, name) for point in self.recipe.methods]
        numbers = [each for each in every if isinstance(each, float)]
        return min(numbers) < value < max(numbers)

    @property
    def varied(self) -> list[str]:
        """The parameters that were tried at several values."""
        return [name for name, values in self.values.items() if len(values) > 1]

    @property
    def teachers_nll(self) -> float | None:
        """The teachers' calibrated NLL on the same images, if they were scored."""
        return next((row.nll for row in self.table(TeacherScore) if row.calibration == JUDGE), None)

    def times(self) -> dict[str, list[float]]:
        """How long the teachers' trainings took, and those of all points together."""
        points = [seconds for name in self.methods for seconds in self.seconds(name)]
        return {TEACHERS: self.seconds(TEACHERS), "points": points}

    def line(self, point: Tried) -> str:
        """The method at a point as a line of a recipe's [methods]."""
        settings = _set(point.settings)
        if "step_size" in settings:
            settings["step_size"] = text_of(settings["step_size"], "step_size")
        return f"{self.method} = {toml({**self.asked.settings, **settings})}"


def in_words(settings: dict[str, Value]) -> str:
    """ "α 0.9, τ 4, η 1/255" """
    return ", ".join(f"{SYMBOLS[name]} {text_of(value, name)}" for name, value in _set(settings).items())


def _scores(rows: Sequence[SweepScore]) -> dict[str, MeanSd]:
    return {name: metrics.mean_sd([getattr(row, name) for row in rows]) for name in headings(SweepScore)}


def _set(settings: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in settings.items() if value is not None}


def _order(value: Value) -> tuple[bool, float]:
    return (not isinstance(value, float), value if isinstance(value, float) else 0.0)
