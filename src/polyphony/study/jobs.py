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
from polyphony.data.files import path_exists
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
from polyphony.training.predict import predict

TRAIN_SUBSET = 5000  # training images that models predict on, instead of all


class Training:
    """The base class of jobs that train a teacher or a student."""

    study: Study

    def run(self, stage: Stage, watch: Watch) -> None:
        """Claim the stage in the first process of the group, and train; if the result exists, do nothing."""
        claimed = group_from_environment().from_first(lambda: stage.start(self.teacher_hashes()))
        if claimed is not None:
            self.train(claimed, watch)

    def teacher_hashes(self) -> dict[str, str]:
        """Folder in the run → hash of the weights, for each teacher that the training uses."""
        return {}

    def train(self, stage: Stage, watch: Watch) -> None:
        """Train the model and save it in the stage, which this attempt has claimed."""
        raise NotImplementedError

    def fit(
        self, stage: Stage, model: Ensemble, loss: Loss, plan: Plan, rng: torch.Generator, watch: Watch
    ) -> list[Row]:
        """Train a model with all processes of the group, with the stage as checkpoint; returns the log."""
        splits = self.study.data()
        unlabelled = splits.unlabelled if plan.unlabelled else None
        return fit(
            model,
            loss,
            splits.train.joined(unlabelled) if unlabelled else splits.train,
            splits.valid,
            plan,
            rng,
            device=self.study.device,
            checkpoint=stage,
            watch=watch,
            group=group_from_environment(),
        )

    def finish(self, stage: Stage, model: nn.Module, log: Sequence[Row], facts: Mapping[str, Any]) -> None:
        """Save the weights and done.json, from the first process of the group only.

        `facts` are further entries of done.json. An empty log adds no number of epochs.
        """
        record: dict[str, Any] = {"versions": versions(), "machine": machine(self.study), **facts}
        if log:
            seconds = round(sum(row["seconds"] for row in log), 3)
            record = {"epochs": len(log), "seconds": seconds, **record}
        group_from_environment().from_first(lambda: stage.finish(model.state_dict(), record))


@dataclass(frozen=True)
class TrainTeacher(Training):
    """Trains teacher j on the labels, or imports its pretrained weights."""

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
            return self.import_weights(stage, [Path(file) for file in teachers.weights], watch)
        number = teachers.number(self.j)
        rng = generator("teacher", number)
        model = Single(study.network(teachers.network_of(self.j), generator("teacher weights", number)))
        log = self.fit(stage, model, CrossEntropy(), study.training_plan(teachers), rng, watch)
        return self.finish(stage, model.network, log, {})

    def import_weights(self, stage: Stage, files: Sequence[Path], watch: Watch) -> None:
        """Check pretrained weights on validation images and save them; raises if they do not fit the data."""
        refuse_copies([path for path in files if path_exists(file_and_key(path)[0])])
        splits, path = self.study.data(), files[self.j]
        network = self.study.network(self.study.recipe.teachers.network_of(self.j))
        predictions = answers(network, path, splits.valid, self.study.device)
        refuse_unfit(predictions.logits[0].argmax(-1), predictions.labels, splits.classes, path)
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
        """The teachers that the training uses: one for each member, and one more if the method has a source.

        A student that is not distilled uses the first teacher if it starts from its weights.
        """
        recipe, method = self.study.recipe, self.study.recipe.distillation(self.method)
        if method:
            count = recipe.members + bool(method.source)
        else:
            count = int(recipe.starts_from_teacher(self.method))
        return [TrainTeacher(self.study, j) for j in range(count)]

    @property
    def needs(self) -> Sequence[TrainTeacher]:
        """Its teachers. Pretrained teachers are all needed: every file is checked before students train."""
        if isinstance(self.study.recipe.teachers, PretrainedTeachers):
            return [TrainTeacher(self.study, j) for j in range(self.study.teacher_count)]
        return self.teachers

    @property
    def folder(self) -> Path:
        return self.study.student(self.method, self.seed).folder

    def teacher_hashes(self) -> dict[str, str]:
        numbers = [teacher.j for teacher in self.teachers]
        return {f"teachers/{j}": self.study.teacher(j).record()["weights"] for j in numbers}

    def train(self, stage: Stage, watch: Watch) -> None:
        study, rng = self.study, generator("student", self.seed)
        student = study.fresh_student(self.method, generator("student weights", self.seed)).to(study.device)
        loss, step_size = self.loss(student)
        plan = study.training_plan(study.recipe.schedule(self.method))
        plan = plan.replace(unlabelled=study.unlabelled_share(self.method))
        log = self.fit(stage, student, loss, plan, rng, watch)
        proof = study.proof(self.method, student)
        facts = {"proof": proof.model_dump(mode="json")} if proof else {}
        self.finish(stage, student, log, {"step_size": step_size, **facts})

    def loss(self, student: Ensemble) -> tuple[Loss, float | None]:
        """The loss of the method, and its step size (None without a perturbation that takes steps)."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        if method is None:
            return CrossEntropy(), None
        teachers = study.load_teachers(study.recipe.members).folded()
        make_perturbation = self.perturbation(method)
        step_size = self.step_size(method, teachers, make_perturbation)
        perturb, steps = make_perturbation(step_size), study.student_steps(self.method)
        loss = study.recipe.form(self.method).loss(teachers, method, perturb, steps)
        return loss, step_size or None

    def step_size(
        self,
        method: Distillation,
        teachers: DeepEnsemble,
        make_perturbation: Callable[[float], Perturbation],
    ) -> float:
        """The method's step size; "match" is computed here and gives every seed the same number."""
        if method.step_size != "match":
            return method.step_size
        study, share = self.study, self.study.recipe.student.match_share
        rng = generator("match", 0)
        with arithmetic(deterministic=study.recipe.deterministic):
            return group_from_environment().from_first(
                lambda: match_step_size(
                    make_perturbation, teachers, study.data(), method.temperature, rng, share
                )
            )

    def perturbation(self, method: Distillation) -> Callable[[float], Perturbation]:
        """A function that maps a step size to the method's perturbation. Loads the source teacher, if any."""
        source = None
        if method.source:
            source = self.study.load_teachers(1, first=self.study.recipe.members).folded()
        return lambda step_size: method.perturbation(step_size, source)

    def trained_perturbation(self) -> Callable[[Tensor, Tensor], Tensor]:
        """A function that maps (images, labels) to perturbed images, as in a next step of the training."""
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
    """The images that a model predicts on: a split, perhaps with a method's perturbation."""

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
        """The images without perturbation: a whole held-out split, or a subset of another one."""
        split: Split = getattr(splits, self.split)
        return split if self.is_held_out else split.some(TRAIN_SUBSET)


@dataclass(frozen=True)
class Predict:
    """Saves the logits of one model on some images."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    images: Images

    @property
    def name(self) -> str:
        return prediction_name(self.model, self.seed, self.images.name)

    @property
    def needs(self) -> Sequence[TrainTeacher | TrainStudent]:
        """The trainings of the model, and of the student whose perturbation is applied."""
        perturbing = [self.perturbing_student] if self.perturbing_student else []
        if self.seed is not None:
            return [TrainStudent(self.study, self.model, self.seed), *perturbing]
        return [*(TrainTeacher(self.study, j) for j in range(self.teacher_count)), *perturbing]

    @property
    def path(self) -> Path:
        return prediction_path(self.study.folder, self.model, self.seed, self.images.name)

    @property
    def perturbing_student(self) -> TrainStudent | None:
        """The student whose perturbation is applied to the images: the first seed of the method."""
        method = self.images.method
        return TrainStudent(self.study, method, self.study.recipe.seeds[0]) if method else None

    @property
    def teacher_count(self) -> int:
        """How many teachers predict: all on held-out images, for the DEE curve; else one for each member."""
        return self.study.teacher_count if self.images.is_held_out else self.study.recipe.members

    def run(self, result: SavedPredictions, watch: Watch) -> None:
        model = self.study.load_model(self.model, self.seed, self.teacher_count)
        student = self.perturbing_student
        before = student.trained_perturbation() if student else None
        result.save(predict(model, self.images.read(self.study.data()), before=before))
        watch.epoch({})


def prediction_name(model: str, seed: int | None, images: str) -> str:
    """The name of a job that predicts."""
    return f"predict {model}{'' if seed is None else f', seed {seed},'} on {images}"
