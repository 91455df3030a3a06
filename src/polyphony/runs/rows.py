"""The rows of all tables of a run. A row is a dataclass; its fields are the columns.

Tables are written, read and checked by the types of the fields. A column that people see has its heading in
the type's annotation; the arrow in a heading says which direction is better.
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
class _ModelRow(TableRow):
    model: str  # "teachers", "best teacher" (one of them), or a method
    seed: int | None  # of a student; the number of the best teacher; None for the teachers together


@dataclass(frozen=True)
class _SplitRow(_ModelRow):
    split: str
    calibration: str  # "standard", or "calibrated": at the temperature fitted on validation images


@dataclass(frozen=True)
class Score(_SplitRow):
    """The scores of a model on a split.

    `kld` is the mean-KLD of the uncalibrated members, or of draws from a student's Dirichlet; 0 for one plain
    network. `rank_correlation`, `distance` and `voice` compare a student with its teachers, as
    `metrics.fidelity` defines them; None if there is nothing to compare.
    """

    file: ClassVar[str] = "scores.csv"
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    dee: Annotated[float | None, "DEE ↑"]  # inf beyond the end of the curve; None without a curve
    kld: Kld
    params: int
    rank_correlation: float | None = None  # of the members' and the teachers' disagreement, over images
    distance: float | None = None  # between the two disagreements, in nats
    voice: float | None = None  # how much nearer member j is to teacher j than to the others, in nats
    adaptive_ece: float | None = None  # ECE with bins of equally many images
    class_wise_ece: float | None = None  # ECE of each class's probability, mean over classes
    aurc: float | None = None  # area under the risk–coverage curve by confidence; see `SelectiveScore`
    excess_aurc: float | None = None
    error_80: float | None = None
    error_90: float | None = None
    coverage_5: float | None = None
    error_auroc: float | None = None


@dataclass(frozen=True)
class SelectiveScore(_SplitRow):
    """How well one uncertainty of a model separates wrong answers from right ones (`metrics.selective`)."""

    file: ClassVar[str] = "analysis/selective.csv"
    score: str  # the uncertainty: doubt (1 − confidence), entropy, or mutual_information
    aurc: float  # area under the risk–coverage curve
    excess_aurc: float  # aurc minus the area of the best possible order
    error_80: float  # error rate among the 80 % of images with the least uncertainty
    error_90: float
    coverage_5: float  # the largest share of images with an error rate of at most 5 %
    error_auroc: float | None  # None if no answer is wrong, or all are


@dataclass(frozen=True)
class SetScore(_ModelRow):
    """Prediction sets for all test images, or for the test images of one class (`metrics.conformal`)."""

    file: ClassVar[str] = "analysis/sets.csv"
    score: str  # the method: lac or aps
    wanted: float  # the requested coverage
    label: str | None  # the class of the images; None for all images
    n: int
    coverage: float  # share of the sets that hold the true label
    size: float  # mean number of classes in a set
    empty: float  # share of the sets without a class
    fitted: int  # number of validation images for the temperature
    calibrated: int  # number of validation images for the threshold


@dataclass(frozen=True)
class Threshold(_ModelRow):
    """Thresholds of a model for one coverage, from validation images."""

    file: ClassVar[str] = "analysis/thresholds.csv"
    coverage: float
    confidence: float  # calibrated; a share `coverage` of the images has at least this confidence
    temperature: float  # of the sets; fitted on other images than the threshold
    score: float  # a set holds the classes whose −log p at that temperature is at most this; inf: all classes


@dataclass(frozen=True)
class GroupedScore(_ModelRow):
    """A calibrated model on the test images of one class, or of one group of the user's."""

    file: ClassVar[str] = "analysis/groups.csv"
    by: str  # "class", or the name of the user's column
    group: str
    n: int
    acc: float
    ece: float
    confidence: float  # mean over the group's images
    label: str | None  # true class in the most frequent error; None without errors
    answer: str | None  # predicted class in that error
    times: int  # number of such errors


@dataclass(frozen=True)
class UnlabelledKld(TableRow):
    """How much the teachers disagree on unlabelled images and on validation images, in nats."""

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
class Temperature(_ModelRow):
    """The temperature of a model's calibrated scores, fitted on its validation predictions."""

    file: ClassVar[str] = "analysis/temperatures.csv"
    temperature: float


@dataclass(frozen=True)
class SweepScore(_ModelRow):
    """One point and seed of a sweep on validation images; `model` is the name of the point."""

    file: ClassVar[str] = "sweep.csv"
    alpha: float
    temperature: float
    step_size: float | str | None  # "match" or "search" if it is found; None if the method takes no step
    calibration: str  # "standard", or "calibrated": at the temperature fitted on these same images
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    kld: Kld


@dataclass(frozen=True)
class TeacherScore(TableRow):
    """The teachers of a sweep on validation images."""

    file: ClassVar[str] = "analysis/teachers.csv"
    calibration: str
    acc: Acc
    nll: Nll
    bs: Brier
    ece: Ece
    kld: Kld


@dataclass(frozen=True)
class CorruptedScore(_ModelRow):
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
class UnknownScore(_ModelRow):
    """How well a model separates images of another data set (positive) from its own test images."""

    file: ClassVar[str] = "analysis/ood.csv"
    unknown: str
    # The uncertainty: entropy, mutual_information or doubt (1 − confidence) of the mean prediction, or energy
    # or max_logit of the members' mean logits.
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
    snr: float  # corrected for the noise in the mean over samples
    samples: int
    literal: float | None = None  # by the formula as the paper prints it


@dataclass(frozen=True)
class FactorDistance(_ModelRow):
    """How far apart the rank-one factors of a student's members are, as a share of their norm."""

    file: ClassVar[str] = "analysis/factors.csv"
    distance: float


@dataclass(frozen=True)
class Latency(TableRow):
    """The cost of a model's answers: milliseconds for a batch, and bytes of its exported file."""

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
    """The headings of the columns that people see, by column."""
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
    names = [field.name for field in fields(kind) if field.name in header or field.default is MISSING]
    for name in names:
        if name not in header:
            raise ValueError(f"it has no column '{name}'")
    index = {name: header.index(name) for name in names}
    return [kind(**{name: _value(line[i], types[name]) for name, i in index.items()}) for line in lines]


def _cells(text: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table; raises a ValueError if a row has another length."""
    if text and not text.endswith("\n"):  # the last number may be cut off, and would look valid
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
    """The value of a cell, by the first type that accepts it; an empty cell is None if that is a type."""
    if not cell and NoneType in types:
        return None
    *others, last = (kind for kind in types if kind is not NoneType)
    for kind in others:
        with suppress(ValueError):
            return kind(cell)
    return last(cell)
