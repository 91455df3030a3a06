"""The paper's tables (paper.csv, paper_tuning.csv), and which of its experiments a recipe reproduces.

Numbers are as printed in the paper; accuracies are percentages. Two errors of the paper are kept: its
calibrated table of WRN-28x2 students repeats the standard one, and the Brier scores of its comparison with
EnD² are standard.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from polyphony.recipe import Recipe, Schedule, read_recipe, shipped
from polyphony.recipe.points import text_of
from polyphony.runs.rows import Kind, from_csv

APART = ("corrupted", "rerun", "ood")  # tables that `row` reads only by name
BATCH_ENSEMBLE = "batch_ensemble"  # the form of almost all students in the paper


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables. `method` is a perturbation's name, `scratch`, `teachers` or `endd`.

    `table` is "text" for numbers from the paper's text, "rerun" for the re-run in the authors' README,
    "ood" for mean entropies on test images and on SVHN. Scores are as printed, "0.180 ± 0.001", or empty.
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
    known_entropy: str
    unknown_entropy: str


@dataclass(frozen=True)
class Tuning:
    """The paper's validation accuracy and calibrated NLL of plain distillation at one α and temperature."""

    experiment: str
    alpha: float
    temperature: float
    n: int
    acc: str
    nll: str


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper: a shipped recipe, and the settings of its student that the paper states."""

    name: str
    words: str
    stated: Collection[str]

    @cached_property
    def recipe(self) -> Recipe:
        return read_recipe(shipped()[self.name], code=False)

    @property
    def form(self) -> str:
        return self.recipe.form_table(next(iter(self.recipe.methods))).label


@dataclass(frozen=True)
class PaperExperiments:
    """The paper's experiments that a recipe reproduces, and how the recipe differs from them."""

    names: tuple[str, ...]
    words: str
    departures: tuple[str, ...] = ()

    def row(
        self, method: str, calibration: str, table: str | None = None, form: str = BATCH_ENSEMBLE
    ) -> PaperRow | None:
        """The paper's row of a method and a form of student; None if it has none.

        `table` is "corrupted" for corrupted images (default: any table of test scores).
        """
        for row in paper_rows():
            is_same = (row.method, row.calibration) == (method, calibration) and row.experiment in self.names
            in_table = row.table == table if table else row.table not in APART
            if is_same and in_table and (method == "teachers" or EXPERIMENTS[row.experiment].form == form):
                return row
        return None


_SCHEDULE = ("epochs", "batch", "learning_rate", "weight_decay")
_DISTILLATION = ("alpha", "temperature", "step_size")
_ALL = (*_SCHEDULE, *_DISTILLATION)
_ALL_BUT_EPOCHS = _ALL[1:]
_OPTIMISER = ("optimizer", "momentum", "schedule", "warm_up", "clip")
_WIDE = "from WideResNet-28x10 on"
_EXPERIMENTS = (
    Experiment("cifar10-resnet32-be4", "ResNet-32 on CIFAR-10, 4 members", _ALL),
    Experiment("cifar10-resnet32-be8", "ResNet-32 on CIFAR-10, 8 members", _ALL),
    Experiment("cifar100-wrn28x10-be4", "WideResNet-28x10 on CIFAR-100, 4 members", _ALL_BUT_EPOCHS),
    Experiment("cifar100-wrn28x2-be4", f"WideResNet-28x2 {_WIDE} CIFAR-100, 4 members", _ALL_BUT_EPOCHS),
    Experiment("cifar100-wrn28x5-be4", f"WideResNet-28x5 {_WIDE} CIFAR-100, 4 members", _ALL_BUT_EPOCHS),
    Experiment(
        "tinyimagenet-wrn28x5-be4", f"WideResNet-28x5 {_WIDE} TinyImageNet, 4 members", _ALL_BUT_EPOCHS
    ),
    Experiment("cifar100-wrn28x10-mimo3", "MIMO of WideResNet-28x10 on CIFAR-100, 3 members", _DISTILLATION),
    *(
        Experiment(f"cifar10-resnet32-end2-{members}", f"EnD² from {members} ResNet-32 on CIFAR-10", ())
        for members in (4, 8, 16, 32)
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _EXPERIMENTS}
_PARTS = {"cifar10-resnet32-adversarial": "cifar10-resnet32-be4"}  # recipe → experiment that it belongs to
_DIFFERENCES = {
    "epochs": "the {who} train for {ours} epochs, not {theirs}",
    "batch": "the {who} learn in batches of {ours}, not {theirs}",
    "learning_rate": "the {who} have a learning rate of {ours}, not {theirs}",
    "weight_decay": "the {who} have a weight decay of {ours}, not {theirs}",
    "alpha": "α is {ours}, not {theirs}",
    "temperature": "τ is {ours}, not {theirs}",
    "step_size": "η is {ours}, not {theirs}",
}


def experiments_of(recipe: Recipe, name: str = "", free: Collection[str] = ()) -> PaperExperiments | None:
    """The paper's experiments with the settings of a recipe, or else the experiment it is named after.

    Settings in `free` are not compared; `name` is the recipe's name (default: its own). Returns None if there
    is no such experiment.
    """
    shipped_experiments = [experiment for experiment in EXPERIMENTS.values() if experiment.name in shipped()]
    departures = {each.name: _departures(recipe, each, free) for each in shipped_experiments}
    same = tuple(key for key, differences in departures.items() if not differences)
    if same:
        return PaperExperiments(same, "; ".join(EXPERIMENTS[key].words for key in same))
    name = name or recipe.name
    name = _PARTS.get(name, name)
    if name not in departures:
        return None
    return PaperExperiments((name,), EXPERIMENTS[name].words, departures[name])


def _departures(recipe: Recipe, experiment: Experiment, free: Collection[str]) -> tuple[str, ...]:
    """How a recipe differs from an experiment of the paper, in a few words for each difference."""
    data, theirs = recipe.data, experiment.recipe
    networks = [recipe.teachers.network_of(j) for j in range(recipe.members)]
    forms = [recipe.form_table(name) for name in recipe.methods]
    conditions = {
        f"the data are not {theirs.data.name}": data.name != theirs.data.name,
        "only a part of the data is used": data.limit or data.per_class or data.test,
        "the images are resized": data.resolution,
        "the classes are the coarse ones": data.coarse,
        "the validation images are others": data.valid not in (None, theirs.data.valid),
        "the augmentation is different": data.augment != theirs.data.augment,
        f"there are {recipe.members} members": recipe.members != theirs.members,
        "the teachers are another network": any(each != theirs.teachers.network_of(0) for each in networks),
        "the student is another network": recipe.student_network != theirs.student_network,
        "the student has another form": experiment.form not in {form.label for form in forms},
        "the members start differently": any(getattr(form, "factor_std", None) is not None for form in forms),
        "the students start from a teacher": any(map(recipe.starts_from_teacher, recipe.methods)),
    }
    differences = [words for words, is_true in conditions.items() if is_true]
    if isinstance(recipe.teachers, Schedule):
        keys = {*_SCHEDULE} - {*free}
        differences += _schedule_differences("teachers", recipe.teachers, theirs.teachers, keys)
    else:
        differences.append("the teachers were trained elsewhere")
    keys = {*experiment.stated} - {*free}
    return (*differences, *_schedule_differences("students", recipe.student, theirs.student, keys))


def _schedule_differences(who: str, ours: Schedule, theirs: object, keys: Collection[str]) -> list[str]:
    """The settings of a training that differ from the paper's, in words: its optimiser, and `keys`."""
    differences = []
    if any(getattr(ours, key) != getattr(theirs, key) for key in _OPTIMISER):
        differences.append(f"the {who}' optimiser or its schedule is different")
    for key, words in _DIFFERENCES.items():
        mine, papers = getattr(ours, key, None), getattr(theirs, key, None)
        if key in keys and mine != papers:
            differences.append(words.format(who=who, ours=text_of(mine, key), theirs=text_of(papers, key)))
    return differences


def printed(row: PaperRow | None, column: str) -> str:
    """A cell of a row of the paper; empty without a row, or if the paper has no such column (mean-KLD)."""
    return getattr(row, column, "")


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows of the paper's tables of results."""
    return _read("paper.csv", PaperRow)


@cache
def tuning() -> tuple[Tuning, ...]:
    """All cells of the paper's two tables of hyper-parameters."""
    return _read("paper_tuning.csv", Tuning)


def _read(name: str, kind: type[Kind]) -> tuple[Kind, ...]:
    return tuple(from_csv(files("polyphony.report").joinpath(name).read_text(encoding="utf-8"), kind))
