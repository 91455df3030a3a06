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
from polyphony.runs.proof import Proof, with_proof
from polyphony.runs.scores import TEACHERS
from polyphony.runs.stage import TrainingFolder
from polyphony.training.fit import Plan

Model = tuple[str, int | None]  # "teachers" or a method, and a student's seed

TRAIN_SUBSET = 5000  # training images that models predict on, instead of all
SMALL_IMAGE = 16 * 16  # pixels up to which one thread trains faster than two


@dataclass(frozen=True)
class Study:
    """A recipe, its output folder, the data folder, and the device."""

    recipe: Recipe
    folder: Path
    data_root: Path | None = None
    device: str = "cpu"
    # Replaces the recipe's data, for example to count costs.
    splits_override: Splits | None = field(default=None, repr=False)

    def data(self) -> Splits:
        """The data of the recipe, read once and cached."""
        return self.splits_override or load_splits(self.recipe.data, self.data_root)

    @property
    def teacher_count(self) -> int:
        """How many teachers the study has: one for each member, and the extra ones."""
        return self.recipe.members + self.recipe.teachers.extra

    @property
    def students(self) -> list[tuple[str, int]]:
        """(method, seed) of every student."""
        return [(name, seed) for name in self.recipe.methods for seed in self.recipe.seeds]

    @property
    def models(self) -> list[Model]:
        """(model, seed) of every model that predicts: the teachers as one model, then every student."""
        return [(TEACHERS, None), *self.students]

    def threads(self) -> int:
        """Threads of a process (default: one for small images, else one for each core)."""
        height, width = self.data().train.images.shape[-2:]
        return self.recipe.threads or (1 if height * width <= SMALL_IMAGE else cores())

    def teacher(self, j: int) -> TrainingFolder:
        return TrainingFolder(self.folder / "teachers" / str(j))

    def student(self, name: str, seed: int) -> TrainingFolder:
        return TrainingFolder(self.folder / "students" / name / str(seed))

    def step_search(self, name: str) -> TrainingFolder:
        """The folder of the search for a method's step size."""
        return TrainingFolder(self.folder / "students" / name / "search")

    def training_plan(self, schedule: Schedule) -> Plan:
        """The plan of a training; raises a RecipeError if the schedule's batch is larger than the data."""
        if schedule.batch > len(self.data().train):
            raise RecipeError(
                f"{self.recipe.name}: a batch of {schedule.batch} is larger than"
                f" the data's {len(self.data().train)} training images"
            )
        recipe = self.recipe
        settings = recipe.model_dump(include={"precision", "deterministic", "way", "compile"})
        return Plan.of(schedule, augment=recipe.data.augment, **settings)

    def unlabelled_share(self, method: str) -> float:
        """The share of unlabelled images in a batch of a method's training."""
        distillation = self.recipe.distillation(method)
        return distillation.share if distillation else 0.0

    def student_steps(self, method: str, epochs: int) -> int:
        """The number of steps of a method's training with this number of epochs."""
        batch, share = self.recipe.schedule(method).batch, self.unlabelled_share(method)
        return epoch_steps(self.data().train, batch, share) * epochs

    def blueprint(self, table: NetworkTable, start: dict[str, Tensor] | None = None) -> Blueprint:
        """The blueprint of networks for this data; `start` holds initial weights, if there are any."""
        splits = self.data()
        shape = tuple(splits.train.images.shape[1:])
        return Blueprint(table, len(splits.classes), shape, splits.train.statistics, start)

    def network(self, table: NetworkTable, rng: torch.Generator | None = None) -> nn.Module:
        """A new network for this data, which normalises its inputs."""
        return self.blueprint(table).network(rng)

    def fresh_student(self, name: str, rng: torch.Generator) -> Ensemble:
        """A method's student with its initial weights."""
        start = self.teacher(0).weights() if self.recipe.starts_from_teacher(name) else None
        return self._student(name, rng, start, None)

    def blank_student(self, name: str) -> Ensemble:
        """A method's student with arbitrary weights, to be counted or overwritten."""
        return self._student(name, None, None, None)

    def proof(self, name: str, student: Ensemble) -> Proof | None:
        """The result of a trained student's conversion check; None if its network was not converted."""
        blueprint = self.blueprint(self.recipe.student_network)
        return Proof.of(student, self.recipe.form_table(name), blueprint)

    def _student(
        self, name: str, rng: torch.Generator | None, start: dict[str, Tensor] | None, proof: Proof | None
    ) -> Ensemble:
        blueprint = self.blueprint(self.recipe.student_network, start)
        blueprint = with_proof(blueprint, self.recipe.form_table(name), proof)
        try:
            return self.recipe.form(name).student(blueprint, self.recipe.members, rng)
        except ValueError as error:
            if isinstance(error, RecipeError) or torch.get_default_device().type == "meta":
                raise  # the caller may try again on a device where weights have values
            raise RecipeError(f"{self.recipe.name}: methods.{name}: {error}") from error

    def load_model(self, model: str, seed: int | None, teachers: int) -> Ensemble:
        """A trained student as it predicts; if `seed` is None, the first `teachers` teachers instead."""
        return self.load_teachers(teachers) if seed is None else self.load_student(model, seed)

    def load_teachers(self, count: int, first: int = 0) -> DeepEnsemble:
        """Trained teachers `first` to `first + count - 1`; numbers from `members` on are extra teachers."""
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

    def predicting_members(self, name: str) -> int:
        """How many members a method's student predicts with."""
        return self.recipe.form(name).predictors(self.recipe.members)

    def outlined(self) -> Study:
        """The study with blank images in the official number; raises a DataError if that is unknown."""
        return replace(self, splits_override=outline(self.recipe.data.name, self.recipe.data))


@lru_cache(maxsize=1)
def load_splits(data: Data, root: Path | None) -> Splits:
    """The data of a recipe. Only the last is cached: a process works on one data set at a time."""
    return load(data.name, data, root)
