"""The jobs of a study: train a teacher, train a student, predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyphony.compute.devices import arithmetic
from polyphony.compute.parallel import group_from_environment
from polyphony.compute.seeds import generator
from polyphony.data import Split, Splits
from polyphony.data.files import there
from polyphony.distill import CrossEntropy, match_step_size
from polyphony.distill.perturb import Perturbation, applied
from polyphony.ensembles import DeepEnsemble, Ensemble, Single
from polyphony.nn.weights import file_and_key
from polyphony.recipe import Distillation, PretrainedTeachers
from polyphony.runs.predictions import prediction_path
from polyphony.runs.stage import Stage
from polyphony.study.pretrained import answers, refuse_copies, refuse_unfit
from polyphony.study.provenance import machine, versions
from polyphony.study.saved import SavedPredictions
from polyphony.study.study import Study
from polyphony.training.collapse import Row
from polyphony.training.fit import Loss, Plan, Watch, fit
from polyphony.training.predict import predict, unchanged

TRAIN_SHOWN = 5000  # training images on which the teachers' disagreement is measured


class Training:
    """What trainings of teachers and students have in common."""

    study: Study

    def run(self, stage: Stage, watch: Watch) -> None:
        """Train in the stage, which the first process claims; does nothing if the result exists by then."""
        started = group_from_environment().from_first(lambda: stage.start(self.seen()))
        if started is not None:
            self.train(started, watch)

    def seen(self) -> dict[str, str]:
        """The hashes of the weights that it learns from, by folder in the run."""
        return {}

    def train(self, stage: Stage, watch: Watch) -> None:
        """Make the model in a claimed stage."""
        raise NotImplementedError

    def fit(
        self, stage: Stage, model: Ensemble, loss: Loss, plan: Plan, rng: torch.Generator, watch: Watch
    ) -> list[Row]:
        """Train a model in its stage, with all processes of the group; returns the log."""
        splits = self.study.data()
        mixed = splits.unlabelled if plan.unlabelled else None
        return fit(
            model,
            loss,
            splits.train.joined(mixed) if mixed else splits.train,
            splits.valid,
            plan,
            rng,
            device=self.study.device,
            checkpoint=stage,
            watch=watch,
            group=group_from_environment(),
        )

    def finish(self, stage: Stage, model: nn.Module, log: Sequence[Row], more: Mapping[str, Any]) -> None:
        """Save weights and facts in a stage; only the first process of a group does."""
        facts: dict[str, Any] = {"versions": versions(), "machine": machine(self.study), **more}
        if log:
            seconds = round(sum(row["seconds"] for row in log), 3)
            facts = {"epochs": len(log), "seconds": seconds, **facts}
        group_from_environment().from_first(lambda: stage.finish(model.state_dict(), facts))


@dataclass(frozen=True)
class TrainTeacher(Training):
    """Trains teacher j on the labels, or takes in a pretrained one."""

    study: Study
    j: int

    @property
    def name(self) -> str:
        return f"teacher {self.j}"

    @property
    def epochs(self) -> int:
        teachers = self.study.recipe.teachers
        return 1 if isinstance(teachers, PretrainedTeachers) else teachers.epochs

    @property
    def needs(self) -> Sequence[TrainTeacher]:
        return ()

    @property
    def folder(self) -> Path:
        return self.study.teacher(self.j).folder

    def train(self, stage: Stage, watch: Watch) -> None:
        study, teachers = self.study, self.study.recipe.teachers
        if isinstance(teachers, PretrainedTeachers):
            return self.take_in(stage, [Path(file) for file in teachers.weights], watch)
        number = teachers.number(self.j)
        rng = generator("teacher", number)
        model = Single(study.network(teachers.network_of(self.j), generator("teacher weights", number)))
        log = self.fit(stage, model, CrossEntropy(), study.plan(teachers), rng, watch)
        return self.finish(stage, model.network, log, {})

    def take_in(self, stage: Stage, files: Sequence[Path], watch: Watch) -> None:
        """Save pretrained weights, if they know the classes of the data."""
        refuse_copies([path for path in files if there(file_and_key(path)[0])])
        splits, path = self.study.data(), files[self.j]
        network = self.study.network(self.study.recipe.teachers.network_of(self.j))
        found = answers(network, path, splits.valid, self.study.device)
        refuse_unfit(found.logits[0].argmax(-1), found.labels, splits.classes, path)
        self.finish(stage, network, [], {})
        watch.epoch({})


@dataclass(frozen=True)
class TrainStudent(Training):
    """Trains the student of one method and seed. All methods of a seed start from the same weights."""

    study: Study
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def epochs(self) -> int:
        return self.study.recipe.schedule(self.method).epochs

    @property
    def teachers(self) -> list[TrainTeacher]:
        """The teachers it learns from, and one more if that gives the directions."""
        recipe, method = self.study.recipe, self.study.recipe.distillation(self.method)
        alone = int(recipe.starts_from_teacher(self.method))
        count = recipe.members + bool(method.source) if method else alone
        return [TrainTeacher(self.study, j) for j in range(count)]

    @property
    def needs(self) -> Sequence[TrainTeacher]:
        """Its teachers. If they are pretrained, all of them: each is checked before anything is trained."""
        given = isinstance(self.study.recipe.teachers, PretrainedTeachers)
        count = self.study.teacher_count if given else len(self.teachers)
        return [TrainTeacher(self.study, j) for j in range(count)]

    @property
    def folder(self) -> Path:
        return self.study.student(self.method, self.seed).folder

    def seen(self) -> dict[str, str]:
        each = [(teacher.j, self.study.teacher(teacher.j).record()) for teacher in self.teachers]
        return {f"teachers/{j}": record["weights"] for j, record in each}

    def train(self, stage: Stage, watch: Watch) -> None:
        study, rng = self.study, generator("student", self.seed)
        student = study.fresh_student(self.method, generator("student weights", self.seed)).to(study.device)
        loss, step_size = self.loss(student)
        plan = study.plan(study.recipe.schedule(self.method))
        plan = plan.replace(unlabelled=study.unlabelled_share(self.method))
        log = self.fit(stage, student, loss, plan, rng, watch)
        proof = study.proof(self.method, student)
        proven = {"proof": proof.model_dump(mode="json")} if proof else {}
        self.finish(stage, student, log, {"step_size": step_size, **proven})

    def loss(self, student: Ensemble) -> tuple[Loss, float | None]:
        """The loss of the method, and the size of its step, if it takes one."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        if method is None:
            return CrossEntropy(), None
        teachers = study.load_teachers(study.recipe.members).folded()
        make = self.perturbation(method)
        step_size, steps = self.step_size(method, teachers, make), study.student_steps(self.method)
        loss = study.recipe.form(self.method).loss(teachers, method, make(step_size), steps)
        return loss, step_size or None

    def step_size(
        self, method: Distillation, teachers: DeepEnsemble, make: Callable[[float], Perturbation]
    ) -> float:
        """The method's step size; "match" is computed here, the same for every seed."""
        if method.step_size != "match":
            return method.step_size
        study, share = self.study, self.study.recipe.student.match_share
        rng = generator("match", 0)
        with arithmetic(deterministic=study.recipe.deterministic):
            return group_from_environment().from_first(
                lambda: match_step_size(make, teachers, study.data(), method.temperature, rng, share)
            )

    def perturbation(self, method: Distillation) -> Callable[[float], Perturbation]:
        """Step size → the method's perturbation. Loads its source."""
        source = None
        if method.source:
            source = self.study.load_teachers(1, first=self.study.recipe.members).folded()
        return lambda step_size: method.perturbation(step_size, source)

    def before(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The method's perturbation of a batch, as the trained student's next step would apply it."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        assert method is not None
        student = study.load_training_student(self.method, self.seed)
        size = study.student(self.method, self.seed).record()["step_size"]
        perturb = self.perturbation(method)(size or 0.0)
        rng = generator("perturbed training images", 0)
        teachers = study.load_teachers(study.recipe.members).folded()
        return applied(perturb, teachers, student, method.temperature, rng)


@dataclass(frozen=True)
class Images:
    """What a model predicts on: a split, or training images as a method's training perturbs them."""

    split: Literal["train", "valid", "test", "unlabelled"]
    method: str | None = None

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        return self.split if self.method is None else f"{self.split}+{self.method}"

    @property
    def is_held_out(self) -> bool:
        return self.split in ("valid", "test")

    def read(self, splits: Splits) -> Split:
        """The images without perturbation: all held-out ones, or some of the others."""
        found: Split = getattr(splits, self.split)
        return found if self.is_held_out else found.some(TRAIN_SHOWN)


@dataclass(frozen=True)
class Predict:
    """Saves the logits of one model on some images."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    images: Images

    @property
    def name(self) -> str:
        return predicting(self.model, self.seed, self.images.name)

    @property
    def needs(self) -> Sequence[TrainTeacher | TrainStudent]:
        """The trainings of the model, and of the student whose perturbation is applied."""
        perturbing = [self.perturbing] if self.perturbing else []
        if self.seed is not None:
            return [TrainStudent(self.study, self.model, self.seed), *perturbing]
        return [*(TrainTeacher(self.study, j) for j in range(self.count)), *perturbing]

    @property
    def path(self) -> Path:
        return prediction_path(self.study.folder, self.model, self.seed, self.images.name)

    @property
    def perturbing(self) -> TrainStudent | None:
        """The student whose perturbation is applied to the images."""
        method = self.images.method
        return TrainStudent(self.study, method, self.study.recipe.seeds[0]) if method else None

    @property
    def count(self) -> int:
        """How many teachers predict: all on held-out images, for the DEE curve; else one for each member."""
        return self.study.teacher_count if self.images.is_held_out else self.study.recipe.members

    def run(self, result: SavedPredictions, watch: Watch) -> None:
        model = self.study.load_model(self.model, self.seed, self.count)
        before = self.perturbing.before() if self.perturbing else unchanged
        result.save(predict(model, self.images.read(self.study.data()), before=before))
        watch.epoch({})


def predicting(model: str, seed: int | None, what: str) -> str:
    return f"predict {model}{'' if seed is None else f', seed {seed},'} on {what}"
