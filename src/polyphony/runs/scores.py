"""Names, digits and comparisons of scores, shared by the terminal, the page and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from polyphony import metrics
from polyphony.metrics import MeanSd, Predictions
from polyphony.runs.rows import Score, Threshold, headings

TEACHERS = "teachers"  # the ensemble: all teachers that students learn from
BEST_TEACHER = "best teacher"  # one of them: least calibrated NLL on validation images, own temperature
CALIBRATIONS = ("calibrated", "standard")
JUDGE = "calibrated"  # its validation NLL ranks the points of a sweep, as in the paper
HEADINGS = headings(Score)

LEVELS = [percent / 100 for percent in range(50, 100)]  # coverages that students can be asked for

BySeed = Mapping[int | None, float]  # a student's score by its seed


def select(
    rows: Iterable[Score], model: str, split: str = "test", calibration: str = "calibrated"
) -> list[Score]:
    """The rows of a model, one per seed."""
    wanted = (model, split, calibration)
    return [row for row in rows if (row.model, row.split, row.calibration) == wanted]


def mean_of(rows: Iterable[Score], column: str) -> MeanSd:
    """Mean and standard deviation of a column; a missing DEE is NaN."""
    values = (getattr(row, column) for row in rows)
    return metrics.mean_sd([math.nan if value is None else value for value in values])


def mean_text(column: str, value: MeanSd) -> str:
    """ "0.384 ± 0.004", or only the mean if there is no deviation.

    Accuracy is in per cent and has two digits, all else has three.
    """
    scale, digits = (100, 2) if column == "acc" else (1, 3)
    mean = f"{scale * value.mean:.{digits}f}"
    return mean if math.isnan(value.sd) else f"{mean} ± {scale * value.sd:.{digits}f}"


def score_text(column: str, values: Sequence[float | None], teachers: int) -> str:
    """A score over seeds as text; a dash for a missing DEE and for the mean-KLD of one network.

    `teachers` is the number of teachers behind the DEE curve.
    """
    known = [value for value in values if value is not None]
    if not known or (column == "kld" and not any(known)):
        return "–"
    if column == "dee":
        return Dee.of(known, teachers).text
    return mean_text(column, metrics.mean_sd(known))


@dataclass(frozen=True)
class Dee:
    """How many teachers a model is worth: by its mean NLL over seeds, and the range over single seeds.

    So it is the same function of the NLL for the teachers and for students. `teachers` is the number of
    teachers on the curve: a DEE past its end is infinite.
    """

    value: float
    least: float
    largest: float
    teachers: int

    @classmethod
    def of(
        cls, seeds: Sequence[float], teachers: int, nll: float = math.nan, curve: Sequence[float] = ()
    ) -> Dee:
        """From the mean NLL if the curve is known, else the lower median of the DEEs of all seeds."""
        value = metrics.dee(nll, curve) if curve else median_low(seeds)
        return cls(value, min(seeds), max(seeds), teachers)

    @property
    def text(self) -> str:
        """ "3.12", ">8" """
        return self._number(self.value, 2)

    @property
    def seeds(self) -> str:
        """ "2.90 to 3.41"; empty if all seeds have the same."""
        return self.seeds_text(2, " to ")

    def seeds_text(self, digits: int, between: str) -> str:
        """The range over seeds, with this number of digits and this text between its ends."""
        ends = dict.fromkeys(self._number(end, digits) for end in (self.least, self.largest))
        return between.join(ends) if len(ends) > 1 else ""

    def _number(self, dee: float, digits: int) -> str:
        return f">{self.teachers}" if dee == math.inf else f"{dee:.{digits}f}"


def differ(one: BySeed, other: BySeed) -> bool:
    """Whether the 95 % interval of two students' difference, paired by seed, excludes zero."""
    apart = [one[seed] - other[seed] for seed in one if seed in other]
    if len(apart) < 2:
        return False
    found = metrics.paired(apart)
    return abs(found.mean) > found.half


def by_shared_seeds(values: Mapping[str, BySeed]) -> Mapping[str, BySeed]:
    """The values at the seeds that all students have; all values if no seed is shared."""
    shared = set.intersection(*(set(each) for each in values.values()))
    kept = {name: {seed: each[seed] for seed in each if seed in shared} for name, each in values.items()}
    return kept if shared else values


def thresholds(model: str, seed: int | None, valid: Predictions, temperature: float) -> Iterator[Threshold]:
    """The thresholds of a model for each coverage, from its validation predictions and temperature."""
    rule = valid.set_rule()
    for level in LEVELS:
        confidence = valid.confidence_at(level, temperature)
        yield Threshold(model, seed, level, confidence, rule.temperature, rule.threshold(level))
