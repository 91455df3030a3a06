"""A study: a recipe, the folder its results go to, and what each result depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from polyphony._util.files import cores
from polyphony.data import Splits, epoch_steps, load, outline
from polyphony.data.files import readable, regular, there
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.recipe import ROUNDING, Data, GivenTeachers, NetworkTable, Recipe, RecipeError, Schedule
from polyphony.runs.store import Spec, Stage
from polyphony.training.fit import Plan

Name = TypeVar("Name")
Built = TypeVar("Built")

FORMAT = 3  # raised when training or a default changes, so that no old result passes for a new one
TAUGHT = ("teachers", "start", "source")  # what a student's key holds of teachers
# Keys that decide no training, or stand in a stage's spec in another way; all others are in it as they are.
OF_RECIPE = ROUNDING | {"name", "members", "seeds", "data", "teachers", "student", "methods"}
OF_SCHEDULE = {"network", "networks", "extra", "seed", "start", "form", "match_share"}
OF_METHOD = {"form", "start", "perturb", "source", "epochs", "learning_rate"}
SETTINGS = {"alpha", "temperature", "step_size", "passes", "share"}  # of a method, or of all
SMALL_IMAGE = 16 * 16  # pixels up to which one thread trains faster than two


@dataclass(frozen=True)
class Study:
    """A recipe, the folder its results go to, where data lies, and the device."""

    recipe: Recipe
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"
    data_instead: Splits | None = field(default=None, repr=False)  # of the recipe's, where models are counted

    @property
    def splits(self) -> Splits:
        """The data, read once a process."""
        return self.data_instead or load_splits(self.recipe.data, self.data_root)

    @property
    def teacher_count(self) -> int:
        """How many teachers are trained: one a member, and the extra ones."""
        return self.recipe.members + self.recipe.teachers.extra

    @property
    def students(self) -> list[tuple[str, int]]:
        """(method, seed) of every student."""
        return [(name, seed) for name in self.recipe.methods for seed in self.recipe.seeds]

    @property
    def threads(self) -> int:
        """Threads a process."""
        height, width = self.splits.train.images.shape[-2:]
        return self.recipe.threads or (1 if height * width <= SMALL_IMAGE else cores())

    def teacher_folder(self, j: int) -> Path:
        """Where teacher j is."""
        return self.folder / "teachers" / str(j)

    def student_folder(self, name: str, seed: int) -> Path:
        """Where one student is."""
        return self.folder / "students" / name / str(seed)

    def teacher_stage(self, j: int) -> Stage:
        """The folder of teacher j."""
        teachers = self.recipe.teachers
        if isinstance(teachers, GivenTeachers):
            return Stage(self.teacher_folder(j), self._given_spec(j, Path(teachers.weights[j])))
        spec = self._spec("teacher", teachers.number(j), teachers)
        return Stage(self.teacher_folder(j), spec | {"network": teachers.network_of(j).spec()})

    def _given_spec(self, j: int, file: Path) -> Spec:
        """A given teacher's network and file, and the images it was judged on, which early runs do not say.

        Where the file is gone, the run's own copy stands for it as long as all else is as it was.
        """
        kept = (Stage(self.teacher_folder(j), {}).found() or {}).get("spec")
        spec: Spec = {"kind": "given teacher", "network": self.recipe.teachers.network_of(j).spec()}
        if kept is None or "valid" in kept:
            spec["valid"] = self.splits.valid.fingerprint
        if kept and not there(file) and kept == spec | {"weights": kept.get("weights")}:
            return spec | {"weights": kept["weights"]}
        return spec | {"weights": weights_hash(file)}

    def student_stage(self, name: str, seed: int) -> Stage:
        """The folder of one student; its key depends on the weights of the teachers it learns from."""
        untaught, method = self.untaught_stage(name, seed), self.recipe.distillation(name)
        spec = dict(untaught.spec)
        if method:
            stages = [self.teacher_stage(j) for j in range(self.recipe.members)]
            spec["teachers"] = [stage.done()["weights"] for stage in stages]
        if self.recipe.starts_from_teacher(name):
            spec["start"] = self.teacher_stage(0).done()["weights"]
        if method and method.source:
            spec["source"] = self.teacher_stage(self.recipe.members).done()["weights"]
        return Stage(untaught.folder, spec)

    def untaught_stage(self, name: str, seed: int) -> Stage:
        """The folder of one student, and its settings alone, without what its teachers are."""
        method, table = self.recipe.distillation(name), self.recipe.form_table(name)
        form = table.spec()
        spec = self._spec("student", seed, self.recipe.schedule(name)) | {
            "members": self.recipe.members,
            "network": self.recipe.student_network.spec(),
            "method": method.spec() if method else "scratch",
            **({"form": form} if form else {}),
            **self.recipe.methods[name].spec_but(OF_METHOD | SETTINGS),
        }
        if self.recipe.starts_from_teacher(name) and getattr(table, "factor_std", 0) is None:
            spec |= self.recipe.form(name).spec({"factor_std"})  # early runs, without this key, had 0.02
        if method and method.step_size == "match":
            spec |= self.recipe.student.spec({"match_share"})
        if method and method.share and self.splits.unlabelled:
            spec["unlabelled"] = self.splits.unlabelled.fingerprint
        if method and (others := self._other_networks()):
            spec["taught_by"] = others
        return Stage(self.student_folder(name, seed), spec)

    def _other_networks(self) -> list[Spec]:
        """Given teachers' networks that are not the student's: weights alone do not say what they answer."""
        teachers, own = self.recipe.teachers, self.recipe.student_network.spec()
        given = range(self.teacher_count if isinstance(teachers, GivenTeachers) else 0)
        found = [teachers.network_of(j).spec() for j in given]
        return found if any(each != own for each in found) else []

    def _spec(self, kind: str, seed: int, schedule: Schedule) -> Spec:
        return {
            "format": FORMAT,
            "kind": kind,
            "seed": seed,
            "schedule": schedule.spec_but(OF_SCHEDULE | SETTINGS),
            "augment": self.recipe.data.augment.spec(),
            **self.recipe.spec_but(OF_RECIPE),
            "train": self.splits.train.fingerprint,
            "valid": self.splits.valid.fingerprint,
            **self._classes(),
        }

    def _classes(self) -> Spec:
        """How many classes there are, where the labels of training and validation images do not say it."""
        count, seen = len(self.splits.classes), (self.splits.train.labels, self.splits.valid.labels)
        return {} if count == 1 + max(int(labels.max()) for labels in seen) else {"classes": count}

    def plan(self, schedule: Schedule) -> Plan:
        """How a schedule of the recipe is followed on this data."""
        if schedule.batch > len(self.splits.train):
            raise RecipeError(
                f"{self.recipe.name}: a batch of {schedule.batch} is larger than"
                f" the data's {len(self.splits.train)} training images"
            )
        recipe = self.recipe
        settings = (recipe.precision, recipe.deterministic, recipe.way, recipe.compile)
        return schedule.plan(recipe.data.augment, *settings)

    def unlabelled_share(self, method: str) -> float:
        """The share of a batch's images without labels in the training of a method's student."""
        distillation = self.recipe.distillation(method)
        return distillation.share if distillation else 0.0

    def student_steps(self, method: str) -> int:
        """How many steps the training of a method's student has."""
        schedule, share = self.recipe.schedule(method), self.unlabelled_share(method)
        return epoch_steps(self.splits.train, schedule.batch, share) * schedule.epochs

    def network(self, table: NetworkTable, rng: torch.Generator | None = None, copies: int = 1) -> nn.Module:
        """A fresh network for this data, with its normalisation; inputs and outputs so many times."""
        shape = tuple(self.splits.train.images.shape[1:])
        network = table.fitted(len(self.splits.classes), shape, rng, copies)
        table.normalize(network, *(copies * values for values in self.splits.train.statistics))
        return network

    def fresh_student(self, name: str, rng: torch.Generator | None = None) -> Ensemble:
        """A method's student before training; without a generator its weights are only to be replaced."""
        members, form = self.recipe.members, self.recipe.form(name)
        network = self.network(self.recipe.student_network, rng, form.copies(members))
        if rng is not None and self.recipe.starts_from_teacher(name):
            network.load_state_dict(self.teacher_stage(0).weights())
        try:
            return form.build(network, members, rng)
        except ValueError as error:
            if any(weight.is_meta for weight in network.parameters()):
                raise  # it may work where weights have numbers
            raise RecipeError(f"{self.recipe.name}: methods.{name}: {error}") from error

    def fresh_students(self) -> dict[str, Ensemble]:
        """Every method's student before training, one for methods of the same form; to be looked at."""
        return built_once(self.recipe.methods, self.recipe.form_table, self.fresh_student)

    def stages(self, model: str, seed: int | None, teachers: int) -> list[Stage]:
        """The folders of a model's weights: a student's, or without a seed those of so many teachers."""
        if seed is None:
            return [self.teacher_stage(j) for j in range(teachers)]
        return [self.student_stage(model, seed)]

    def load_model(self, model: str, seed: int | None, teachers: int) -> Ensemble:
        """A trained student as it predicts, or without a seed so many teachers together."""
        return self.load_teachers(teachers) if seed is None else self.load_student(model, seed)

    def load_teachers(self, count: int, first: int = 0) -> DeepEnsemble:
        """`count` trained teachers; those from `members` on are extra ones, which no student learns from."""
        networks = []
        for j in range(first, first + count):
            network = self.network(self.recipe.teachers.network_of(j))
            network.load_state_dict(self.teacher_stage(j).weights())
            networks.append(network)
        return DeepEnsemble(networks).to(self.device)

    def load_student(self, name: str, seed: int) -> Ensemble:
        """A trained student, as it predicts."""
        return self.recipe.form(name).trained(self.load_training_student(name, seed))

    def load_training_student(self, name: str, seed: int) -> Ensemble:
        """A trained student, as it was while it was trained."""
        student = self.fresh_student(name)
        student.load_state_dict(self.student_stage(name, seed).weights())
        return student.to(self.device)

    def members(self, name: str) -> int:
        """How many members a method's student predicts with."""
        return self.recipe.form(name).predictors(self.recipe.members)

    def with_one_image(self) -> Study:
        """The study with its first image alone, whose networks are built at once, and on any device."""
        splits = replace(self.splits, train=self.splits.train[:1])
        splits.train.statistics  # noqa: B018 (worked out here, once)
        return replace(self, data_instead=splits)

    def outlined(self) -> Study:
        """The study with as many blank images as the official data has; a DataError where that is unknown."""
        return replace(self, data_instead=outline(self.recipe.data.name, self.recipe.data.options()))


def built_once(
    names: Iterable[Name], alike: Callable[[Name], object], build: Callable[[Name], Built]
) -> dict[Name, Built]:
    """What is built for each name, once for those whose tables look the same."""
    tables = {name: repr(alike(name)) for name in names}
    firsts = {table: name for name, table in reversed(tables.items())}
    built = {table: build(name) for table, name in firsts.items()}
    return {name: built[table] for name, table in tables.items()}


def weights_hash(path: Path) -> str:
    """The hash of a file of weights, read once a process while it stays as it is."""
    with readable(path):
        status = path.stat()
    return _hash(path, status.st_mtime_ns, status.st_size)


@lru_cache
def _hash(path: Path, changed: int, size: int) -> str:
    with readable(path), regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=1)
def load_splits(data: Data, root: Path | None) -> Splits:
    """The data of a recipe; a process works on one data set at a time."""
    return load(data.name, data.options(), root)
