"""A row of scores.csv, and the curve of deep ensembles behind its DEE: what studies write, reports read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from polyphony import metrics
from polyphony.predictions import Predictions
from polyphony.seeds import generator

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEACHERS = "teachers"  # the model that all teachers of the ensemble are together
CALIBRATIONS = ("calibrated", "standard")
JUDGE = "calibrated"  # whose validation NLL decides in a sweep, as in the paper's tables of hyper-parameters


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
    return {
        "calibrated": metrics.calibrated_dee_curve(
            pool.logits, pool.labels, valid.logits, valid.labels, generator("subsets", 0)
        ),
        "standard": metrics.dee_curve(pool.logits, pool.labels, generator("subsets", 0)),
    }
