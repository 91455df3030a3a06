"""A row of scores.csv, and the curve of deep ensembles behind its DEE: what studies write, reports read.

Also how people are told of scores: the same headings, digits and words on the terminal and on the page.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.predictions import Predictions
from polyphony.seeds import generator
from polyphony.words import listed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEACHERS = "teachers"  # the model that all teachers of the ensemble are together
CALIBRATIONS = ("calibrated", "standard")
JUDGE = "calibrated"  # whose validation NLL decides in a sweep, as in the paper's tables of hyper-parameters
HEADINGS = {
    "acc": "ACC % ↑",
    "nll": "NLL ↓",
    "bs": "BS ↓",
    "ece": "ECE ↓",
    "dee": "DEE ↑",
    "kld": "mean-KLD",
}


@dataclass(frozen=True)
class Score:
    """A row of scores.csv. Brier is summed over classes; kld is the mean-KLD of the uncalibrated members,
    or of draws from a student's Dirichlet, and 0 for one plain network."""

    model: str
    seed: int | None
    split: str
    calibration: str  # "standard", or "calibrated": at the temperature fitted on validation
    acc: float
    nll: float
    bs: float
    ece: float
    dee: float | None  # inf past the end of the curve; none where there is no curve
    kld: float
    params: int

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Score:
        """A row of the file; KeyError or ValueError if it is none."""
        numbers = {name: float(row[name]) for name in ("acc", "nll", "bs", "ece", "kld")}
        return cls(
            model=row["model"],
            seed=int(row["seed"]) if row["seed"] else None,
            split=row["split"],
            calibration=row["calibration"],
            dee=float(row["dee"]) if row["dee"] else None,
            params=int(row["params"]),
            **numbers,
        )


def to_csv(rows: Iterable[DataclassInstance], kind: type[DataclassInstance] = Score) -> str:
    """The text of a file of rows, its columns those of their `kind`: missing values are empty, ∞ is inf."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def dee_curves(pool: Predictions, valid: Predictions) -> dict[str, list[float]]:
    """NLL of deep ensembles of size 0, 1, 2, …, mean over subsets of all teachers, for both calibrations.

    `pool` and `valid` are all teachers on the images scored and on validation images. The subsets are always
    the same, so that a report draws the curve that a study scored with.
    """
    fitted_on = {"calibrated": (valid.logits, valid.labels), "standard": None}
    return {
        kind: metrics.dee_curve(pool.logits, pool.labels, generator("subsets", 0), on)
        for kind, on in fitted_on.items()
    }


def mean_text(column: str, value: MeanSd) -> str:
    """A score's mean ± s.d. for people: accuracy in per cent with two digits, all else with three."""
    scale, digits = (100, 2) if column == "acc" else (1, 3)
    return metrics.format_mean_sd(MeanSd(value.n, scale * value.mean, scale * value.sd), digits)


def score_text(column: str, values: Sequence[float | None], teachers: int) -> str:
    """A score over seeds for people; a dash for a DEE without a curve and the mean-KLD of one network.

    `teachers` is how many the DEE curve was made of.
    """
    known = [value for value in values if value is not None]
    if not known or (column == "kld" and not any(known)):
        return "–"
    if column == "dee":
        return metrics.format_dees(known, teachers)
    return mean_text(column, metrics.mean_sd(known))


def differ(one: MeanSd, other: MeanSd) -> bool:
    """Whether two means are apart by more than the spread of their difference; never without a spread."""
    return abs(one.mean - other.mean) > math.hypot(one.sd, other.sd)


@dataclass(frozen=True)
class Standing:
    """The student of least NLL, its NLL over seeds, and which of the others it cannot be told from."""

    best: str
    nll: MeanSd
    level: tuple[str, ...]

    @classmethod
    def of(cls, nlls: Mapping[str, MeanSd]) -> Standing:
        """Where students stand by their NLLs over seeds."""
        best = min(nlls, key=lambda name: nlls[name].mean)
        others = [name for name in nlls if name != best]
        return cls(best, nlls[best], tuple(name for name in others if not differ(nlls[best], nlls[name])))

    @property
    def words(self) -> str:
        """How the best stands to the others, where there are others and a spread."""
        seeds = f"the spread over {self.nll.n} seeds"
        if not self.level:
            return f"ahead of every other student by more than {seeds}"
        return f"level with {listed(self.level)}: they differ by less than {seeds}"


TRAINED_ONCE = "every student was trained once: no difference between methods can be told from chance"


def by_quality(nlls: Mapping[str, MeanSd]) -> str:
    """Which student has the least calibrated NLL, and with which it is level; nothing about one student."""
    if len(nlls) < 2:
        return ""
    found = Standing.of(nlls)
    best = f"The student of least calibrated NLL is {found.best} ({mean_text('nll', found.nll)})"
    return f"{best}; {TRAINED_ONCE}." if found.nll.n == 1 else f"{best}, {found.words}."
