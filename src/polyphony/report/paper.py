"""The paper's tables, transcribed once (paper.csv, paper_tuning.csv), and which of them a recipe reproduces.

Accuracies are percentages, as printed. The cells are the paper's own, slips included: its calibrated table of
WRN-28x2 students repeats the standard one, and the Brier scores of its comparison with EnD² are standard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from polyphony.data import Augmentation
from polyphony.metrics import MeanSd
from polyphony.recipe import NetworkTable, Recipe, Schedule
from polyphony.recipe.points import text_of
from polyphony.runs.rows import Kind, from_csv

BATCH_ENSEMBLE = "batch_ensemble"  # the form of nearly all the paper's students


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables. `method` is a perturbation's name, `scratch`, `teachers` or `endd`.

    `table` is "text" for numbers that stand in a sentence. Scores are as printed, "0.180 ± 0.001", or empty.
    """

    table: str
    experiment: str
    calibration: str
    method: str
    acc: str
    nll: str
    bs: str
    ece: str
    dee: str


@dataclass(frozen=True)
class Tuning:
    """Validation accuracy and calibrated NLL, as printed, of plain distillation for one α and temperature."""

    experiment: str
    alpha: float
    temperature: float
    n: int
    acc: str
    nll: str

    def mean(self, column: str) -> MeanSd:
        """The number in a column."""
        mean, _, sd = getattr(self, column).partition(" ± ")
        return MeanSd(self.n, float(mean), float(sd or "nan"))


@dataclass(frozen=True)
class Experiment:
    """The settings of one of the paper's experiments; `student_training` has only those that it states."""

    data: str
    members: int
    teacher: dict[str, Any]
    student: dict[str, Any]
    words: str
    student_training: dict[str, float]
    form: str = BATCH_ENSEMBLE


@dataclass(frozen=True)
class PaperExperiments:
    """The paper's experiments that a recipe reproduces, and the settings in which it departs from them."""

    names: tuple[str, ...]
    words: str
    departures: tuple[str, ...] = ()

    def row(
        self, method: str, calibration: str, table: str | None = None, form: str = BATCH_ENSEMBLE
    ) -> PaperRow | None:
        """The paper's row of a method and a form of student; `table` is "corrupted" for corrupted inputs."""
        for row in paper_rows():
            here = (row.method, row.calibration) == (method, calibration) and row.experiment in self.names
            of_form = method == "teachers" or EXPERIMENTS[row.experiment].form == form
            in_table = row.table == table if table else row.table != "corrupted"
            if here and of_form and in_table:
                return row
        return None


def _schedule(batch: int, learning_rate: float, weight_decay: float) -> dict[str, float]:
    return {"batch": batch, "learning_rate": learning_rate, "weight_decay": weight_decay}


def _distillation(temperature: float) -> dict[str, float]:
    return {"alpha": 0.9, "temperature": temperature, "step_size": 1 / 255}


_TEACHER_TRAINING = {
    "cifar10": {"epochs": 200, **_schedule(512, 0.4, 4e-4)},
    "cifar100": {"epochs": 300, **_schedule(256, 0.2, 5e-4)},
    "tinyimagenet": {"epochs": 300, **_schedule(512, 0.4, 5e-4)},
}
_SHOWN = {  # how many images are for validation, and by how much others are padded before a crop
    "cifar10": (5000, 4),
    "cifar100": (5000, 4),
    "tinyimagenet": (10000, 8),
}
_OPTIMISED = (
    "optimizer",
    "momentum",
    "schedule",
    "warm_up",
    "clip",
)  # of which ours by default are the paper's
_R32 = {"kind": "resnet", "depth": 32}


def _wide(widen: int) -> dict[str, Any]:
    return {"kind": "wide_resnet", "depth": 28, "widen": widen}


def _resnet(members: int, batch: int, learning_rate: float) -> Experiment:
    words = f"ResNet-32 on CIFAR-10, {members} members"
    student = {"epochs": 250, **_schedule(batch, learning_rate, 4e-4), **_distillation(4)}
    return Experiment("cifar10", members, _R32, _R32, words, student)


def _cross(data: str, widen: int, words: str) -> Experiment:
    student = {**_schedule(64, 0.05, 5e-4), **_distillation(1)}
    return Experiment(data, 4, _wide(10), _wide(widen), f"{words}, 4 members", student)


def _endd(members: int) -> Experiment:
    words = f"EnD² from {members} ResNet-32 on CIFAR-10"
    return Experiment("cifar10", members, _R32, _R32, words, {}, "dirichlet")


_MIMO = "MIMO of WideResNet-28x10 on CIFAR-100, 3 members"
_FROM = "from WideResNet-28x10 on"
EXPERIMENTS = {
    "cifar10-resnet32-be4": _resnet(4, 128, 0.1),
    "cifar10-resnet32-be8": _resnet(8, 64, 0.05),
    "cifar100-wrn28x10-be4": _cross("cifar100", 10, "WideResNet-28x10 on CIFAR-100"),
    "cifar100-wrn28x2-be4": _cross("cifar100", 2, f"WideResNet-28x2 {_FROM} CIFAR-100"),
    "cifar100-wrn28x5-be4": _cross("cifar100", 5, f"WideResNet-28x5 {_FROM} CIFAR-100"),
    "tinyimagenet-wrn28x5-be4": _cross("tinyimagenet", 5, f"WideResNet-28x5 {_FROM} TinyImageNet"),
    "cifar100-wrn28x10-mimo3": Experiment(
        "cifar100", 3, _wide(10), _wide(10), _MIMO, _distillation(1), "mimo"
    ),
    **{f"cifar10-resnet32-end2-{members}": _endd(members) for members in (4, 8, 16, 32)},
}
_ALSO = {"cifar10-resnet32-adversarial": "cifar10-resnet32-be4"}  # recipes that are part of an experiment
_OTHERWISE = {
    "epochs": "the {who} train for {ours} epochs, not {theirs}",
    "batch": "the {who} learn in batches of {ours}, not {theirs}",
    "learning_rate": "the {who} have a learning rate of {ours}, not {theirs}",
    "weight_decay": "the {who} have a weight decay of {ours}, not {theirs}",
    "alpha": "α is {ours}, not {theirs}",
    "temperature": "τ is {ours}, not {theirs}",
    "step_size": "η is {ours}, not {theirs}",
}


def experiments_of(recipe: Recipe, name: str = "", free: Collection[str] = ()) -> PaperExperiments | None:
    """The paper's experiments with the settings of a recipe, or else the one it is named after.

    Settings in `free` are not compared.
    """
    found = {key: departures(recipe, experiment, free) for key, experiment in EXPERIMENTS.items()}
    same = tuple(key for key, different in found.items() if not different)
    if same:
        return PaperExperiments(same, "; ".join(EXPERIMENTS[key].words for key in same))
    name = name or recipe.name
    name = _ALSO.get(name, name)
    return PaperExperiments((name,), EXPERIMENTS[name].words, found[name]) if name in found else None


def departures(recipe: Recipe, experiment: Experiment, free: Collection[str]) -> tuple[str, ...]:
    """The differences between a recipe and an experiment of the paper, in a few words each."""
    data, teachers = recipe.data, [recipe.teachers.network_of(j) for j in range(recipe.members)]
    forms = [recipe.form_table(name) for name in recipe.methods]
    wrong = {
        f"the data are not {experiment.data}": data.name != experiment.data,
        "only a part of the data is used": data.limit or data.per_class or data.test,
        "the images are resized": data.resolution,
        "the classes are the coarse ones": data.coarse,
        "other images are for validation": data.valid not in (None, _SHOWN[experiment.data][0]),
        "the augmentation is another": data.augment
        != Augmentation(pad=_SHOWN[experiment.data][1], flip=True),
        f"there are {recipe.members} members": recipe.members != experiment.members,
        "the teachers are another network": not all(_is(each, experiment.teacher) for each in teachers),
        "the student is another network": not _is(recipe.student_network, experiment.student),
        "the student is of another form": experiment.form not in {form.label for form in forms},
        "the members start otherwise": any(getattr(form, "factor_std", None) is not None for form in forms),
        "the students start from a teacher": any(map(recipe.starts_from_teacher, recipe.methods)),
        "the students' optimiser or its schedule is another": _optimised_otherwise(recipe.student),
        "the teachers were trained elsewhere": not isinstance(recipe.teachers, Schedule),
    }
    found = [words for words, holds in wrong.items() if holds]
    if isinstance(recipe.teachers, Schedule):
        found += ["the teachers' optimiser or its schedule is another"] * _optimised_otherwise(
            recipe.teachers
        )
        found += _otherwise("teachers", recipe.teachers, _TEACHER_TRAINING[experiment.data], free)
    found += _otherwise("students", recipe.student, experiment.student_training, free)
    return tuple(found)


def _otherwise(who: str, ours: Schedule, theirs: Mapping[str, float], free: Collection[str]) -> list[str]:
    """The settings of a training that are not the paper's."""
    return [
        _OTHERWISE[key].format(who=who, ours=text_of(getattr(ours, key), key), theirs=text_of(value, key))
        for key, value in theirs.items()
        if key not in free and getattr(ours, key) != value
    ]


def _optimised_otherwise(ours: Schedule) -> bool:
    return any(getattr(ours, key) != Schedule.model_fields[key].default for key in _OPTIMISED)


def printed(row: PaperRow | None, column: str) -> str:
    """The cell of a row of the paper; empty if it has no such column, as for mean-KLD."""
    return getattr(row, column, "")


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row of the paper's tables of results."""
    return _read("paper.csv", PaperRow)


@cache
def tuning() -> tuple[Tuning, ...]:
    """Every cell of the paper's two tables of hyper-parameters."""
    return _read("paper_tuning.csv", Tuning)


def _read(name: str, kind: type[Kind]) -> tuple[Kind, ...]:
    return tuple(from_csv(files("polyphony.report").joinpath(name).read_text(encoding="utf-8"), kind))


def _is(network: NetworkTable, wanted: Mapping[str, Any]) -> bool:
    # A ResNet's usual width is not among what the paper says.
    same = all(getattr(network, key, None) == value for key, value in wanted.items())
    return same and getattr(network, "width", 16) == 16
