"""A study: a recipe with its output folder, and its models before and after training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from polyphony._util.files import cores
from polyphony.data import Splits, epoch_steps, load, outline
from polyphony.ensembles import DeepEnsemble, Ensemble
from polyphony.recipe import Blueprint, Data, NetworkTable, Recipe, RecipeError, Schedule
from polyphony.runs.proof import Proof, proven
from polyphony.runs.scores import TEACHERS
from polyphony.runs.stage import Trained
from polyphony.training.fit import Plan

Model = tuple[str, int | None]  # "teachers" or a method, and a student's seed

SMALL_IMAGE = 16 * 16  # pixels up to which one thread trains faster than two


@dataclass(frozen=True)
class Study:
    """A recipe, its output folder, the data folder, and the device."""

    recipe: Recipe
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"
    data_instead: Splits | None = field(default=None, repr=False)  # of the recipe's, to count models

    def data(self) -> Splits:
        """The data, which is cached."""
        return self.data_instead or load_splits(self.recipe.data, self.data_root)

    @property
    def teacher_count(self) -> int:
        """How many teachers are trained: one for each member, and the extra ones."""
        return self.recipe.members + self.recipe.teachers.extra

    @property
    def students(self) -> list[tuple[str, int]]:
        """(method, seed) of every student."""
        return [(name, seed) for name in self.recipe.methods for seed in self.recipe.seeds]

    @property
    def models(self) -> list[Model]:
        """(model, seed) of everything that predicts: the teachers together, then every student."""
        return [(TEACHERS, None), *self.students]

    def threads(self) -> int:
        """Threads of a process: the recipe's, or one for small images, else all cores."""
        height, width = self.data().train.images.shape[-2:]
        return self.recipe.threads or (1 if height * width <= SMALL_IMAGE else cores())

    def teacher(self, j: int) -> Trained:
        return Trained(self.folder / "teachers" / str(j))

    def student(self, name: str, seed: int) -> Trained:
        return Trained(self.folder / "students" / name / str(seed))

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a schedule of the recipe; a RecipeError if its batch is larger than the data."""
        if schedule.batch > len(self.data().train):
            raise RecipeError(
                f"{self.recipe.name}: a batch of {schedule.batch} is larger than"
                f" the data's {len(self.data().train)} training images"
            )
        recipe = self.recipe
        computed = recipe.model_dump(include={"precision", "deterministic", "way", "compile"})
        return Plan.of(schedule, augment=recipe.data.augment, **computed)

    def unlabelled_share(self, method: str) -> float:
        """The share of unlabelled images in a batch, for a method's student."""
        distillation = self.recipe.distillation(method)
        return distillation.share if distillation else 0.0

    def student_steps(self, method: str) -> int:
        """How many steps a method's student is trained."""
        schedule, share = self.recipe.schedule(method), self.unlabelled_share(method)
        return epoch_steps(self.data().train, schedule.batch, share) * schedule.epochs

    def blueprint(self, table: NetworkTable, start: dict[str, Tensor] | None = None) -> Blueprint:
        """What networks for this data are made from, with first weights if a student starts from some."""
        splits = self.data()
        shape = tuple(splits.train.images.shape[1:])
        return Blueprint(table, len(splits.classes), shape, splits.train.statistics, start)

    def network(self, table: NetworkTable, rng: torch.Generator | None = None) -> nn.Module:
        """A new network for this data, with its normalisation."""
        return self.blueprint(table).network(rng)

    def fresh_student(self, name: str, rng: torch.Generator) -> Ensemble:
        """A method's student with its first weights."""
        start = self.teacher(0).weights() if self.recipe.starts_from_teacher(name) else None
        return self._student(name, rng, start, None)

    def blank_student(self, name: str) -> Ensemble:
        """A method's student whose weights do not matter yet."""
        return self._student(name, None, None, None)

    def proof(self, name: str, student: Ensemble) -> Proof | None:
        """What the training of a method's student has shown of its members."""
        blueprint = self.blueprint(self.recipe.student_network)
        return Proof.of(student, self.recipe.form_table(name), blueprint)

    def _student(
        self, name: str, rng: torch.Generator | None, start: dict[str, Tensor] | None, proof: Proof | None
    ) -> Ensemble:
        blueprint = self.blueprint(self.recipe.student_network, start)
        blueprint = proven(blueprint, self.recipe.form_table(name), proof)
        try:
            return self.recipe.form(name).student(blueprint, self.recipe.members, rng)
        except ValueError as error:
            if isinstance(error, RecipeError) or torch.get_default_device().type == "meta":
                raise  # it may work if weights have values
            raise RecipeError(f"{self.recipe.name}: methods.{name}: {error}") from error

    def load_model(self, model: str, seed: int | None, teachers: int) -> Ensemble:
        """A trained student as it predicts, or without a seed so many teachers together."""
        return self.load_teachers(teachers) if seed is None else self.load_student(model, seed)

    def load_teachers(self, count: int, first: int = 0) -> DeepEnsemble:
        """`count` trained teachers from the `first`; those from `members` on are extra ones."""
        networks = []
        for j in range(first, first + count):
            network = self.network(self.recipe.teachers.network_of(j))
            network.load_state_dict(self.teacher(j).weights())
            networks.append(network)
        return DeepEnsemble(networks).to(self.device)

    def load_student(self, name: str, seed: int) -> Ensemble:
        """A trained student as it predicts."""
        return self.recipe.form(name).trained(self.load_training_student(name, seed))

    def load_training_student(self, name: str, seed: int) -> Ensemble:
        """A trained student as it was in training."""
        trained = self.student(name, seed)
        student = self._student(name, None, None, Proof.read(trained.record()))
        student.load_state_dict(trained.weights())
        return student.to(self.device)

    def members(self, name: str) -> int:
        """How many members a method's student predicts with."""
        return self.recipe.form(name).predictors(self.recipe.members)

    def outlined(self) -> Study:
        """The study with as many blank images as the official data has; a DataError if that is unknown."""
        return replace(self, data_instead=outline(self.recipe.data.name, self.recipe.data))


@lru_cache(maxsize=1)
def load_splits(data: Data, root: Path | None) -> Splits:
    """The data of a recipe; a process works on one data set at a time."""
    return load(data.name, data, root)
