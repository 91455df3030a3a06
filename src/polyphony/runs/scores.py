"""How people are told of scores: the same headings, digits and words on the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyphony import metrics
from polyphony._util.text import listed
from polyphony.metrics import MeanSd
from polyphony.runs.rows import Score, headings

TEACHERS = "teachers"  # the model that all teachers of the ensemble are together
CALIBRATIONS = ("calibrated", "standard")
JUDGE = "calibrated"  # whose validation NLL decides in a sweep, as in the paper's tables of hyper-parameters
HEADINGS = headings(Score)

BySeed = Mapping[int | None, float]  # a student's score by its seed


def select(
    rows: Iterable[Score], model: str, split: str = "test", calibration: str = "calibrated"
) -> list[Score]:
    """A model's rows, one a seed."""
    wanted = (model, split, calibration)
    return [row for row in rows if (row.model, row.split, row.calibration) == wanted]


def mean_of(rows: Iterable[Score], column: str) -> MeanSd:
    """Mean and standard deviation of a column; a missing DEE is NaN."""
    values = (getattr(row, column) for row in rows)
    return metrics.mean_sd([math.nan if value is None else value for value in values])


def mean_text(column: str, value: MeanSd) -> str:
    """A score's mean ± s.d. for people, or its mean alone where there is no deviation.

    Accuracy is in per cent; it and DEE have two digits, all else has three.
    """
    scale, digits = 100 if column == "acc" else 1, 2 if column in ("acc", "dee") else 3
    mean = f"{scale * value.mean:.{digits}f}"
    return mean if math.isnan(value.sd) else f"{mean} ± {scale * value.sd:.{digits}f}"


def score_text(column: str, values: Sequence[float | None], teachers: int) -> str:
    """A score over seeds for people; a dash for a DEE without a curve and the mean-KLD of one network.

    `teachers` is how many the DEE curve was made of. Where some DEEs are past its end, the least and the
    largest are given in place of a mean.
    """
    known = [value for value in values if value is not None]
    if not known or (column == "kld" and not any(known)):
        return "–"
    if column == "dee" and math.inf in known:
        ends = [f">{teachers}" if dee == math.inf else f"{dee:.2f}" for dee in (min(known), max(known))]
        return " … ".join(dict.fromkeys(ends))
    return mean_text(column, metrics.mean_sd(known))


def differ(one: BySeed, other: BySeed) -> bool:
    """Whether the 95 % interval of two students' difference, paired by seed, leaves out zero."""
    apart = [one[seed] - other[seed] for seed in one if seed in other]
    if len(apart) < 2:
        return False
    found = metrics.paired(apart)
    return abs(found.mean) > found.half


def by_shared_seeds(values: Mapping[str, BySeed]) -> Mapping[str, BySeed]:
    """The same, of the seeds that all have; as it is where there is none."""
    shared = set.intersection(*(set(each) for each in values.values()))
    kept = {name: {seed: each[seed] for seed in each if seed in shared} for name, each in values.items()}
    return kept if shared else values


@dataclass(frozen=True)
class Standing:
    """The student of least NLL, its NLL over seeds, and which of the others it cannot be told from."""

    best: str
    nll: MeanSd
    level: tuple[str, ...]

    @classmethod
    def of(cls, nlls: Mapping[str, BySeed]) -> Standing:
        """Where students stand by their NLLs, of the seeds that all have."""
        nlls = by_shared_seeds(nlls)
        means = {name: metrics.mean_sd(list(each.values())) for name, each in nlls.items()}
        best = min(means, key=lambda name: means[name].mean)
        others = [name for name in nlls if name != best]
        return cls(best, means[best], tuple(name for name in others if not differ(nlls[best], nlls[name])))

    @property
    def words(self) -> str:
        """How the best stands to the others, where there are others and a spread."""
        interval = f"the 95 % interval of the difference, paired over {self.nll.n} seeds,"
        if not self.level:
            return f"ahead of every other student: {interval} leaves out zero"
        return f"level with {listed(self.level)}: {interval} holds zero"


TRAINED_ONCE = "every student was trained once: no difference between methods can be told from chance"


def by_quality(nlls: Mapping[str, BySeed]) -> str:
    """Which student has the least calibrated NLL, and with which it is level; nothing about one student."""
    if len(nlls) < 2:
        return ""
    found = Standing.of(nlls)
    best = f"The student of least calibrated NLL is {found.best} ({mean_text('nll', found.nll)})"
    return f"{best}; {TRAINED_ONCE}." if found.nll.n == 1 else f"{best}, {found.words}."
