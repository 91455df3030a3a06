"""The paper's tables, transcribed once (paper.csv, paper_tuning.csv), and which of them a recipe reproduces.

Accuracies are percentages, as printed. The cells are the paper's own, slips included: its calibrated table of
WRN-28x2 students repeats the standard one, and the Brier scores of its comparison with EnD² are standard.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

COLUMNS = ("acc", "nll", "bs", "ece", "dee")
_DIGITS = {"acc": 2, "nll": 3, "bs": 3, "ece": 3, "dee": 3}


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its mean, and its standard deviation where one is printed."""

    mean: float
    sd: float | None = None

    def text(self, digits: int) -> str:
        """ "0.180 ± 0.001", as printed."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.sd is None else f"{mean} ± {self.sd:.{digits}f}"


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables. `method` is a perturbation's name, `scratch` or `teachers`."""

    table: str
    experiment: str
    calibration: str
    method: str
    n: int
    params_millions: float | None
    values: dict[str, Printed]

    def text(self, column: str) -> str:
        """A value as the paper prints it, or nothing."""
        value = self.values.get(column)
        return "" if value is None else value.text(_DIGITS[column])


@dataclass(frozen=True)
class Tuning:
    """Validation accuracy and calibrated NLL of plain distillation for one α and temperature."""

    experiment: str
    alpha: float
    temperature: float
    n: int
    acc: Printed
    nll: Printed


@dataclass(frozen=True)
class Experiment:
    """What one of the paper's experiments was run with."""

    data: str
    members: int
    teacher: dict[str, Any]
    student: dict[str, Any]
    words: str
    kind: str = "batch_ensemble"


@dataclass(frozen=True)
class Comparison:
    """The paper's rows for a recipe; what the recipe does otherwise, if its numbers only orient."""

    experiment: str
    words: str
    differences: tuple[str, ...] = field(default=())

    def row(self, method: str, calibration: str, table: str | None = None) -> PaperRow | None:
        """The paper's row of a method; `table` is "corrupted" for corrupted inputs."""
        for row in rows():
            here = (row.experiment, row.method, row.calibration) == (self.experiment, method, calibration)
            if here and (row.table == table if table else row.table != "corrupted"):
                return row
        return None


_R32 = {"kind": "resnet", "depth": 32}


def _wide(widen: int) -> dict[str, Any]:
    return {"kind": "wide_resnet", "depth": 28, "widen": widen}


EXPERIMENTS = {
    "cifar10-resnet32-be4": Experiment("cifar10", 4, _R32, _R32, "ResNet-32 on CIFAR-10, 4 members"),
    "cifar10-resnet32-be8": Experiment("cifar10", 8, _R32, _R32, "ResNet-32 on CIFAR-10, 8 members"),
    "cifar100-wrn28x10-be4": Experiment(
        "cifar100", 4, _wide(10), _wide(10), "WideResNet-28x10 on CIFAR-100, 4 members"
    ),
    "cifar100-wrn28x2-be4": Experiment(
        "cifar100", 4, _wide(10), _wide(2), "WideResNet-28x2 from WideResNet-28x10 on CIFAR-100, 4 members"
    ),
    "cifar100-wrn28x5-be4": Experiment(
        "cifar100", 4, _wide(10), _wide(5), "WideResNet-28x5 from WideResNet-28x10 on CIFAR-100, 4 members"
    ),
    "tinyimagenet-wrn28x5-be4": Experiment(
        "tinyimagenet", 4, _wide(10), _wide(5), "WideResNet-28x5 from -28x10 on TinyImageNet, 4 members"
    ),
    "cifar100-wrn28x10-mimo3": Experiment(
        "cifar100", 3, _wide(10), _wide(10), "MIMO of WideResNet-28x10 on CIFAR-100, 3 members", "mimo"
    ),
}


def compare(recipe: Mapping[str, Any]) -> Comparison | None:
    """The paper's experiment that a recipe is named after, or that it is by its settings; else nothing."""
    name = str(recipe.get("name"))
    if name in EXPERIMENTS:
        return Comparison(name, EXPERIMENTS[name].words, differences(recipe, EXPERIMENTS[name]))
    for key, experiment in EXPERIMENTS.items():
        if not differences(recipe, experiment):
            return Comparison(key, experiment.words)
    return None


def differences(recipe: Mapping[str, Any], experiment: Experiment) -> tuple[str, ...]:
    """What a recipe does otherwise than an experiment of the paper, in a few words each."""
    data, teachers, student = (recipe.get(part) or {} for part in ("data", "teachers", "student"))
    network = teachers.get("network") or {}
    compact = student.get("network") or network
    checks = {
        f"the data are not {experiment.data}": data.get("name") == experiment.data,
        "only a part of the data is used": not any(data.get(key) for key in ("limit", "per_class", "test")),
        "the images are resized": not data.get("resolution"),
        f"there are {recipe.get('members')} members": recipe.get("members") == experiment.members,
        "the teachers are another network": _is(network, experiment.teacher),
        "the student is another network": _is(compact, experiment.student),
        "the student is of another kind": student.get("kind", "batch_ensemble") == experiment.kind,
    }
    return tuple(words for words, holds in checks.items() if not holds)


@cache
def rows() -> tuple[PaperRow, ...]:
    """Every row of the paper's tables of results."""
    return tuple(_row(row) for row in _read("paper.csv"))


@cache
def tuning() -> tuple[Tuning, ...]:
    """Every cell of the paper's two tables of hyper-parameters."""
    return tuple(
        Tuning(
            row["experiment"],
            float(row["alpha"]),
            float(row["temperature"]),
            int(row["n"]),
            _printed(row, "acc"),
            _printed(row, "nll"),
        )
        for row in _read("paper_tuning.csv")
    )


def _row(row: dict[str, str]) -> PaperRow:
    millions = row["params_millions"]
    return PaperRow(
        row["table"],
        row["experiment"],
        row["calibration"],
        row["method"],
        int(row["n"]),
        float(millions) if millions else None,
        {name: _printed(row, name) for name in COLUMNS if row[name]},
    )


def _printed(row: dict[str, str], column: str) -> Printed:
    deviation = row[f"{column}_sd"]
    return Printed(float(row[column]), float(deviation) if deviation else None)


def _read(name: str) -> list[dict[str, str]]:
    text = files("polyphony.report").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _is(network: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    # A ResNet's usual width may be left out or written out.
    return all(network.get(key) == value for key, value in wanted.items()) and network.get("width", 16) == 16
