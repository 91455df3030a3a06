"""The rows of all tables of a run. A row is a dataclass; its fields are the columns.

The types of the fields decide how a table is written, read and checked. A column that people see has its
heading in an annotation; the arrow in the heading says which way is better.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


Acc = Annotated[float, "ACC % ↑"]
Nll = Annotated[float, "NLL ↓"]
Brier = Annotated[float, "BS ↓"]  # summed over classes
Ece = Annotated[float, "ECE ↓"]
Kld = Annotated[float, "mean-KLD"]


@dataclass(frozen=True)
class TableRow:
    """A row of a table; `file` is the path of the table in a run folder."""

    file: ClassVar[str]


@dataclass(frozen=True)
class _Of(TableRow):
    model: str  # "teachers", "best teacher" (one of them), or a method
    seed: int | None  # of a student; the number of the best teacher; None for the teachers together


@dataclass(frozen=True)
class _Scored(_Of):
    split: str
    calibration: str  # "standard", or "calibrated": at the temperature fitted on validation images


@dataclass(frozen=True)
class Score(_Scored):
    """A model on a split. kld is the mean-KLD of the uncalibrated members, or of draws from a student's
    Dirichlet, and 0 for one plain network. rank_correlation, distance and voice compare a student with its
    teachers, as `metrics.fidelity` defines them; None if there is nothing to compare."""

    file: ClassVar[str] = "scores.csv"
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    dee: Annotated[float | None, "DEE ↑"]  # inf past the end of the curve; None without a curve
    kld: Kld
    params: int
    rank_correlation: float | None = None  # of members' disagreement with the teachers', over images
    distance: float | None = None  # between the two disagreements, in nats
    voice: float | None = None  # how much nearer member j is to teacher j than to the others, in nats
    adaptive_ece: float | None = None  # ECE with bins of equally many images
    class_wise_ece: float | None = None  # mean over classes of the ECE of that class's probability
    aurc: float | None = None  # area under the risk–coverage curve by confidence; see `SelectiveScore`
    excess_aurc: float | None = None
    error_80: float | None = None
    error_90: float | None = None
    coverage_5: float | None = None
    error_auroc: float | None = None


@dataclass(frozen=True)
class SelectiveScore(_Scored):
    """How well a model knows which of its answers are wrong, by one uncertainty (`metrics.selective`)."""

    file: ClassVar[str] = "analysis/selective.csv"
    score: str  # the uncertainty: doubt (1 − confidence), entropy, or mutual_information
    aurc: float  # area under the risk–coverage curve
    excess_aurc: float  # minus the area of the best order
    error_80: float  # error rate among the 80 % of images with the least uncertainty
    error_90: float
    coverage_5: float  # the largest share of images with an error rate of at most 5 %
    error_auroc: float | None  # None if no answer is wrong, or all are


@dataclass(frozen=True)
class SetScore(_Of):
    """Prediction sets on test images, of all classes or of the images of one class (`metrics.conformal`)."""

    file: ClassVar[str] = "analysis/sets.csv"
    score: str  # how sets are made: lac or aps
    wanted: float  # the coverage that was asked for
    label: str | None  # the class of the images; None for all images
    n: int
    coverage: float  # share of the sets that hold the true label
    size: float  # mean number of classes in a set
    empty: float  # share of the sets without a class
    fitted: int  # validation images that fitted the temperature
    calibrated: int  # validation images that gave the threshold


@dataclass(frozen=True)
class Threshold(_Of):
    """Thresholds of a model for one coverage, from validation images."""

    file: ClassVar[str] = "analysis/thresholds.csv"
    coverage: float
    confidence: float  # calibrated; this share of images has at least this confidence
    temperature: float  # of the sets, fitted on other images than those that gave the threshold
    score: float  # a set holds the classes whose −log p at that temperature is at most this; inf for all


@dataclass(frozen=True)
class GroupedScore(_Of):
    """A calibrated model on the test images of one class, or of one group that the user names."""

    file: ClassVar[str] = "analysis/groups.csv"
    by: str  # "class", or the name of the user's column
    group: str
    n: int
    acc: float
    ece: float
    confidence: float  # mean over the group's images
    label: str | None  # the most frequent error: images of this class …
    answer: str | None  # … were taken for that one; None without errors
    times: int  # so often


@dataclass(frozen=True)
class UnlabelledKld(TableRow):
    """How far the teachers disagree on images without labels, and on validation images, in nats."""

    file: ClassVar[str] = "analysis/unlabelled.csv"
    n: int
    kld: float
    valid_kld: float


@dataclass(frozen=True)
class EnsembleNll(TableRow):
    """The NLL of deep ensembles of one size, mean over subsets of the teachers: the curve behind DEE."""

    file: ClassVar[str] = "analysis/dee.csv"
    split: str
    calibration: str
    size: int
    nll: float


@dataclass(frozen=True)
class Temperature(_Of):
    """The temperature fitted on a model's validation predictions; calibrated scores use it."""

    file: ClassVar[str] = "analysis/temperatures.csv"
    temperature: float


@dataclass(frozen=True)
class SweepScore(_Of):
    """A point and seed of a sweep on validation images; `model` is the point's name."""

    file: ClassVar[str] = "sweep.csv"
    alpha: float
    temperature: float
    step_size: float | str | None  # "match" if training matches it; None if the method takes no step
    calibration: str  # "standard", or "calibrated": at the temperature fitted on these same images
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    kld: Kld


@dataclass(frozen=True)
class TeacherScore(TableRow):
    """The teachers of a sweep on the same images."""

    file: ClassVar[str] = "analysis/teachers.csv"
    calibration: str
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    kld: Kld


@dataclass(frozen=True)
class CorruptedScore(_Of):
    """A model on corrupted test images, uncalibrated as in the paper's table."""

    file: ClassVar[str] = "analysis/corrupted.csv"
    data: str
    corruption: str
    severity: int
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece


@dataclass(frozen=True)
class UnknownScore(_Of):
    """How well a model separates images of another data set (positive) from its own test images."""

    file: ClassVar[str] = "analysis/ood.csv"
    unknown: str
    # entropy, mutual_information or doubt (1 − confidence) of the mean prediction, or energy or max_logit of
    # the members' mean logits:
    score: str
    auroc: float
    aupr: float
    fpr95: float
    known_entropy: float  # of the mean prediction, in nats
    unknown_entropy: float
    best: int | None = None  # 1 if this score separates validation images from unknown ones best, else 0


@dataclass(frozen=True)
class JacobianCosine(TableRow):
    """The cosine between the Jacobians of teacher j and member j at one image."""

    file: ClassVar[str] = "analysis/jacobians.csv"
    split: str
    model: str
    seed: int
    member: int
    example: int
    cosine: float


@dataclass(frozen=True)
class GradientSnr(TableRow):
    """The signal-to-noise ratio of the gradient under one perturbation and step size."""

    file: ClassVar[str] = "analysis/snr.csv"
    perturbation: str
    step_size: float
    snr: float  # without the noise of the samples' mean
    samples: int
    literal: float | None = None  # by the paper's formula as printed


@dataclass(frozen=True)
class FactorDistance(_Of):
    """How far apart the rank-one factors of a student's members are, as a share of their norm."""

    file: ClassVar[str] = "analysis/factors.csv"
    distance: float


@dataclass(frozen=True)
class Latency(TableRow):
    """What a model's answers cost: milliseconds of one thread for a batch, and bytes of its exported file."""

    file: ClassVar[str] = "analysis/latency.csv"
    model: str
    params: int
    milliseconds: float
    batch: int
    threads: int
    bytes: int | None = None
    runtime: str = "PyTorch"  # or onnxruntime, with its version
    machine: str = ""


def columns(kind: type[DataclassInstance]) -> list[str]:
    """The names of a table's columns."""
    return [field.name for field in fields(kind)]


def headings(kind: type[DataclassInstance]) -> dict[str, str]:
    """The columns that people see, with their headings."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: get_args(hints[name])[1] for name in columns(kind) if hasattr(hints[name], "__metadata__")}


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A CSV file: all digits of numbers, empty cells for None, inf for ∞."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def to_csv(rows: Iterable[Kind], kind: type[Kind]) -> str:
    """The text of a table."""
    names = columns(kind)
    return csv_text(names, ([getattr(row, name) for name in names] for row in rows))


def from_csv(text: str, kind: type[Kind]) -> list[Kind]:
    """The rows of a text that `to_csv` wrote; raises a ValueError for other texts.

    Unknown columns are ignored; columns with a default may be missing.
    """
    header, lines = _cells(text)
    types = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    names = [each.name for each in fields(kind) if each.name in header or each.default is MISSING]
    for name in names:
        if name not in header:
            raise ValueError(f"it has no column '{name}'")
    places = {name: header.index(name) for name in names}
    return [kind(**{name: _value(line[at], types[name]) for name, at in places.items()}) for line in lines]


def _cells(text: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table; raises if a row has another length."""
    if text and not text.endswith("\n"):  # a number that was cut short looks like another number
        raise ValueError("it ends within a line")
    try:
        header, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line] or [[]]
    except csv.Error as error:
        raise ValueError(str(error)) from error
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"a row has {len(line)} cells, not {len(header)}")
    return header, lines


def _value(cell: str, types: Sequence[Any]) -> Any:
    """The value of a cell: None if it is empty and may be, else the first type that parses."""
    if not cell and NoneType in types:
        return None
    *others, last = (each for each in types if each is not NoneType)
    for each in others:
        with suppress(ValueError):
            return each(cell)
    return last(cell)
