"""The runs of PROTOCOL-2: what is compared, and the numbers that tables and figures read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from polyphony import metrics
from polyphony.metrics import MeanSd
from polyphony.report.study_runs import Pair, StudyRuns
from polyphony.runs.rows import TableRow
from polyphony.runs.run import Run

EQUAL = 0.02  # two methods are equal if the interval lies within ± this difference of NLL


@dataclass(frozen=True)
class Trained(TableRow):
    """One training; the teachers' rows have their numbers in the column `seed`."""

    file: ClassVar[str] = "trainings.csv"
    model: str
    seed: int
    epochs: int
    seconds: float
    step_size: float | None
    multiply_adds: float


@dataclass(frozen=True)
class Comparison:
    """Two methods of a study. A name that ends with "*" is the best of these methods on validation images."""

    study: str
    words: str
    method: str
    reference: str


@dataclass(frozen=True)
class Way:
    """A way to train a student: the same settings with different numbers of epochs."""

    label: str
    methods: Sequence[str]


STUDIES = {  # study → its runs in kept/
    "CIFAR-10, 4,000 images": "cifar10-*",
    "CIFAR-10, all images": "full",
    "CIFAR-100, 4,000 images": "cifar100",
    "Fashion-MNIST, 4,000 images": "fashion-*",
}
CIFAR10, FULL, CIFAR100, FASHION = STUDIES
CHOICE = "choose"
COMPARISONS = (
    Comparison(CIFAR10, "ODS − plain", "ods", "plain"),
    Comparison(CIFAR10, "ODS − plain at equal cost", "ods", "plain-long"),
    Comparison(CIFAR10, "ODS − noise", "ods", "noise"),
    Comparison(CIFAR10, "fresh: ODS − plain", "fresh-ods", "fresh-plain"),
    Comparison(CIFAR10, "fresh: ODS − Algorithm 1 as printed", "fresh-ods", "fresh-paper"),
    Comparison(CIFAR10, "ODS: from a teacher − fresh", "ods", "fresh-ods"),
    Comparison(CIFAR100, "ODS − plain at equal cost", "ods", "plain-*"),
    Comparison(CIFAR100, "ODS − noise", "ods", "noise"),
    Comparison(FULL, "ODS − plain", "ods-*", "plain-*"),
    Comparison(FASHION, "from a teacher, 10 epochs − fresh, two passes, 30", "born-e10", "fresh-two-e30"),
    Comparison(FASHION, "from a teacher, 5 epochs − fresh, two passes, 30", "born-e5", "fresh-two-e30"),
    Comparison(FASHION, "shared front, 10 epochs − fresh, two passes, 30", "front-e10", "fresh-two-e30"),
    Comparison(FASHION, "fresh: one pass − two, 30 epochs", "fresh-one-e30", "fresh-two-e30"),
)
WAYS = {
    FASHION: (
        Way("fresh, two passes", ["fresh-two-e30"]),
        Way("fresh, one pass", ["fresh-one-e10", "fresh-one-e30"]),
        Way("from a teacher, two passes", ["born-two-e5"]),
        Way("from a teacher, one pass", ["born-e2", "born-e5", "born-e10"]),
        Way("the same, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
    CHOICE: (
        Way("fresh, two passes, as printed", ["fresh-paper"]),
        Way("fresh, one pass", ["fresh-ods-t1-s4-e10", "fresh-ods-t1-s4"]),
        Way("from a teacher, one pass", ["short-s12", "ods-t1-s12-e5", "ods-t1-s12", "ods-t1-s12-e20"]),
        Way("the same, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
}
STEPS = ("3", "6", "12", "24")


@cache
def runs_of(folder: Path, study: str) -> StudyRuns | None:
    """The kept runs of a study; None if there are none."""
    paths = sorted((folder / "kept").glob(STUDIES.get(study, study)))
    return StudyRuns(study, [Run.open(path) for path in paths]) if paths else None


def resolve(study: StudyRuns, name: str) -> str:
    """The name of a method; of several ("plain-t*") the one with the lowest mean NLL on validation images."""
    if not name.endswith("*"):
        return name
    names = [method for method in study.methods if method.startswith(name[:-1])]
    return min(names, key=lambda method: valid_nll(study, method).mean)


def valid_nll(study: StudyRuns, method: str) -> MeanSd:
    """Calibrated NLL on validation images over sets and seeds."""
    return metrics.mean_sd([row.nll for row in study.scored(method, split="valid").values()])


def cost(study: StudyRuns, method: str) -> float:
    """The multiply-adds of one training."""
    return next(row.multiply_adds for row in study.first.table(Trained) if row.model == method)


def differences(study: StudyRuns, comparison: Comparison, column: str = "nll") -> dict[Pair, float]:
    """Method less reference in a calibrated test score, for each pair of set and seed that both have."""
    mine, theirs = (
        study.column(resolve(study, name), column) for name in (comparison.method, comparison.reference)
    )
    return {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}


def over_sets(gaps: dict[Pair, float]) -> MeanSd:
    """The mean over sets of teachers of each set's mean."""
    sets = sorted({place for place, _ in gaps})
    return metrics.mean_sd([fmean(gap for pair, gap in gaps.items() if pair[0] == place) for place in sets])


def verdict(pairs: MeanSd, sets: MeanSd) -> str:
    """Better or worse if every interval excludes zero, equal if every one is within ± EQUAL, else unclear."""
    halves = [mean.half for mean in (pairs, sets) if mean.n > 1]
    if not halves:
        return "one pair"
    if all(abs(pairs.mean) > half for half in halves):
        return "better" if pairs.mean < 0 else "worse"
    return "equal" if all(abs(pairs.mean) + half <= EQUAL for half in halves) else "unclear"
