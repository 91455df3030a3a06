"""Names of models, texts of scores and comparisons of students, for the terminal, the page and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeVar

from polyphony import metrics
from polyphony.metrics import MeanSd, Predictions
from polyphony.runs.rows import Score, Threshold, headings

TEACHERS = "teachers"  # the ensemble: all teachers that students learn from
BEST_TEACHER = "best teacher"  # the one with the lowest calibrated validation NLL, at its own temperature
CALIBRATIONS = ("calibrated", "standard")
JUDGE = "calibrated"  # the calibration whose validation NLL ranks the points of a sweep, as in the paper
HEADINGS = headings(Score)

LEVELS = [percent / 100 for percent in range(50, 100)]  # coverages with saved thresholds

Seed = TypeVar("Seed", bound=int | None)
BySeed = Mapping[int | None, float]  # scores of a model by seed


def select(
    rows: Iterable[Score], model: str, split: str = "test", calibration: str = "calibrated"
) -> list[Score]:
    """The rows of a model, one per seed."""
    key = (model, split, calibration)
    return [row for row in rows if (row.model, row.split, row.calibration) == key]


def mean_of(rows: Iterable[Score], column: str) -> MeanSd:
    """Mean and standard deviation of a column; a missing value counts as NaN."""
    values = (getattr(row, column) for row in rows)
    return metrics.mean_sd([math.nan if value is None else value for value in values])


def mean_text(column: str, value: MeanSd) -> str:
    """ "0.384 ± 0.004", or only the mean if there is no deviation.

    Accuracy is in percent with two digits; other scores have three digits.
    """
    scale, digits = (100, 2) if column == "acc" else (1, 3)
    mean = f"{scale * value.mean:.{digits}f}"
    return mean if math.isnan(value.sd) else f"{mean} ± {scale * value.sd:.{digits}f}"


def score_text(column: str, values: Sequence[float | None], teachers: int) -> str:
    """A score over seeds as text; a dash if it is missing, and for the mean-KLD of one network.

    `teachers` is the number of teachers of the DEE curve.
    """
    numbers = [value for value in values if value is not None]
    if not numbers or (column == "kld" and not any(numbers)):
        return "–"
    if column == "dee":
        return Dee.of(numbers, teachers).text
    return mean_text(column, metrics.mean_sd(numbers))


@dataclass(frozen=True)
class Dee:
    """How many teachers a model is worth: the DEE of its mean NLL over seeds, and the range over seeds.

    `teachers` is the number of teachers of the curve; a DEE beyond its end is infinite.
    """

    value: float
    least: float
    largest: float
    teachers: int

    @classmethod
    def of(
        cls, seeds: Sequence[float], teachers: int, nll: float = math.nan, curve: Sequence[float] = ()
    ) -> Dee:
        """From the DEEs of all seeds. The value is the DEE of `nll`; without a curve, the lower median."""
        value = metrics.dee(nll, curve) if curve else median_low(seeds)
        return cls(value, min(seeds), max(seeds), teachers)

    @property
    def text(self) -> str:
        """ "3.12", ">8" """
        return self._number(self.value, 2)

    @property
    def seeds(self) -> str:
        """ "2.90 to 3.41"; empty if both ends are the same."""
        return self.seeds_text(2, " to ")

    def seeds_text(self, digits: int, between: str) -> str:
        """The range over seeds, with this number of digits and this text between its ends; may be empty."""
        ends = dict.fromkeys(self._number(end, digits) for end in (self.least, self.largest))
        return between.join(ends) if len(ends) > 1 else ""

    def _number(self, dee: float, digits: int) -> str:
        return f">{self.teachers}" if dee == math.inf else f"{dee:.{digits}f}"


def differ(one: Mapping[Seed, float], other: Mapping[Seed, float]) -> bool:
    """Whether two students differ: the 95 % interval of their difference, paired by seed, excludes zero."""
    differences = [one[seed] - other[seed] for seed in one if seed in other]
    if len(differences) < 2:
        return False
    interval = metrics.paired(differences)
    return abs(interval.mean) > interval.half


def by_shared_seeds(values: Mapping[str, BySeed]) -> Mapping[str, BySeed]:
    """The scores at the seeds that all students have; all scores if they share no seed."""
    shared = set.intersection(*(set(scores) for scores in values.values()))
    if not shared:
        return values
    return {
        name: {seed: scores[seed] for seed in scores if seed in shared} for name, scores in values.items()
    }


def thresholds(model: str, seed: int | None, valid: Predictions, temperature: float) -> Iterator[Threshold]:
    """The thresholds of a model for each coverage in LEVELS, from its validation predictions."""
    rule = valid.set_rule()
    for level in LEVELS:
        confidence = valid.confidence_at(level, temperature)
        yield Threshold(model, seed, level, confidence, rule.temperature, rule.threshold(level))
