"""The jobs of a study: train a teacher, train a student, predict. Each can run wherever the folder is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyphony.compute.devices import arithmetic
from polyphony.compute.parallel import group_from_environment
from polyphony.compute.seeds import generator
from polyphony.data import Split
from polyphony.data.files import there
from polyphony.distill import CrossEntropy, match_step_size
from polyphony.distill.perturb import Perturbation, applied
from polyphony.ensembles import DeepEnsemble, Ensemble, Single
from polyphony.recipe import Distillation, GivenTeachers, Surroundings
from polyphony.recipe.table import Table
from polyphony.runs.predictions import load_predictions, prediction_path, save_predictions
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import Spec, Stage, spec_key
from polyphony.study.code import code_hash
from polyphony.study.given import refuse_copies, take_in
from polyphony.study.origin import machine, versions
from polyphony.study.runner import Job
from polyphony.study.study import FORMAT, Study
from polyphony.training.fit import Loss, Plan, Watch, fit
from polyphony.training.predict import predict, unchanged

TRAIN_SHOWN = 5000  # training images on which the teachers' disagreement is measured


class TrainingJob(Job):
    """A job that trains one model, in a stage."""

    study: Study

    @property
    def stage(self) -> Stage:
        """The folder of the model's weights."""
        raise NotImplementedError

    @property
    def predictions(self) -> Path:
        """The folder of what the model predicts."""
        raise NotImplementedError

    @property
    def tables(self) -> list[Table]:
        """The recipe's tables that make the model, its loss and its plan."""
        raise NotImplementedError

    @property
    def code(self) -> str:
        """The hash of the code that decides which weights the model ends with."""
        return code_hash(type(self), Study, *dict.fromkeys(map(type, self.tables)))

    def is_done(self) -> bool:
        return self.stage.is_done()

    def run(self, watch: Watch) -> None:
        """Train in the stage, which the first process claims; nothing where the result is there by now."""
        self.code  # noqa: B018 (read before the training, in which somebody may edit it)
        if (stage := group_from_environment().from_first(lambda: self.stage.start())) is not None:
            self.train(stage, watch)

    def train(self, stage: Stage, watch: Watch) -> None:
        """Make the model in a stage that was claimed."""
        raise NotImplementedError

    def facts(self, log: list[dict[str, float]]) -> dict[str, Any]:
        """What is worth knowing of a training afterwards, wherever its files go."""
        seconds = round(sum(row["seconds"] for row in log), 3)
        return {"epochs": len(log), "seconds": seconds, **self.origin()}

    def origin(self) -> dict[str, Any]:
        """What made the stage's files."""
        return {"code": self.code, "versions": versions(), "machine": machine(self.study)}


@dataclass(frozen=True)
class TrainTeacher(TrainingJob):
    """Teacher j, on the labels; one that is trained already is taken in."""

    study: Study
    j: int

    @property
    def name(self) -> str:
        return f"teacher {self.j}"

    @property
    def epochs(self) -> int:
        teachers = self.study.recipe.teachers
        return 1 if isinstance(teachers, GivenTeachers) else teachers.epochs

    @property
    def stage(self) -> Stage:
        return self.study.teacher_stage(self.j)

    @property
    def predictions(self) -> Path:
        return prediction_path(self.study.folder, TEACHERS, None, "any").parent

    @property
    def tables(self) -> list[Table]:
        teachers = self.study.recipe.teachers
        plan: list[Table] = (
            [] if isinstance(teachers, GivenTeachers) else [teachers.optimizer, teachers.schedule]
        )
        return [teachers.network_of(self.j), *plan]

    def train(self, stage: Stage, watch: Watch) -> None:
        study, teachers = self.study, self.study.recipe.teachers
        if isinstance(teachers, GivenTeachers):
            refuse_copies([path for path in map(Path, teachers.weights) if there(path)])
            return self.take_in(stage, Path(teachers.weights[self.j]), watch)
        number = teachers.number(self.j)
        rng = generator("teacher", number)
        model = Single(study.network(teachers.network_of(self.j), generator("teacher weights", number)))
        log = train(study, stage, model, CrossEntropy(), study.plan(teachers), rng, watch)
        return finish(stage, model.network, self.facts(log))

    def take_in(self, stage: Stage, path: Path, watch: Watch) -> None:
        """Keep weights that were trained elsewhere, if they know the data's classes."""
        study = self.study
        network = study.network(study.recipe.teachers.network_of(self.j))
        take_in(network, path, study.splits.valid, study.splits.classes, study.device)
        finish(stage, network, self.origin())
        watch.epoch({})


@dataclass(frozen=True)
class TrainStudent(TrainingJob):
    """The student of one method and seed. All methods of a seed start from the same weights."""

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
    def needs(self) -> list[TrainTeacher]:
        """The teachers it learns from, and the one after them if that gives the directions."""
        method = self.study.recipe.distillation(self.method)
        recipe = self.study.recipe
        count = int(recipe.starts_from_teacher(self.method))
        if method:
            count = recipe.members + bool(method.source)
        if isinstance(recipe.teachers, GivenTeachers):  # all are judged before anything is trained
            count = self.study.teacher_count
        return [TrainTeacher(self.study, j) for j in range(count)]

    @property
    def stage(self) -> Stage:
        return self.study.student_stage(self.method, self.seed)

    @property
    def predictions(self) -> Path:
        return prediction_path(self.study.folder, self.method, self.seed, "any").parent

    @property
    def tables(self) -> list[Table]:
        recipe, method = self.study.recipe, self.study.recipe.distillation(self.method)
        schedule, perturbs = recipe.schedule(self.method), method.perturb if method else ()
        form = recipe.form(self.method)
        return [recipe.student_network, form, schedule.optimizer, schedule.schedule, *perturbs]

    def train(self, stage: Stage, watch: Watch) -> None:
        study, rng = self.study, generator("student", self.seed)
        student = study.fresh_student(self.method, generator("student weights", self.seed)).to(study.device)
        loss, step_size = self.loss(student)
        plan = study.plan(study.recipe.schedule(self.method))
        plan = replace(plan, unlabelled=study.unlabelled_share(self.method))
        log = train(study, stage, student, loss, plan, rng, watch)
        finish(stage, student, self.facts(log) | {"step_size": step_size})

    def loss(self, student: Ensemble) -> tuple[Loss, float | None]:
        """What the method minimises, and the size of the step it takes, if it takes one."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        if method is None:
            return CrossEntropy(), None
        teachers = study.load_teachers(study.recipe.members).folded()
        make = self.perturbation(method, student)
        step_size, steps = self.step_size(method, teachers, make), study.student_steps(self.method)
        loss = study.recipe.form(self.method).loss(teachers, method, make(step_size), steps)
        return loss, step_size or None

    def step_size(
        self, method: Distillation, teachers: DeepEnsemble, make: Callable[[float], Perturbation]
    ) -> float:
        """The method's step size; one to be matched is found here, the same for every seed."""
        if method.step_size != "match":
            return method.step_size
        study, share = self.study, self.study.recipe.student.match_share
        rng = generator("match", 0)
        with arithmetic(deterministic=study.recipe.deterministic):
            return group_from_environment().from_first(
                lambda: match_step_size(make, teachers, study.splits, method.temperature, rng, share)
            )

    def perturbation(self, method: Distillation, student: Ensemble) -> Callable[[float], Perturbation]:
        """Step size → the method's perturbation for this student; its source is loaded here, once."""
        source = None
        if method.source:
            source = self.study.load_teachers(1, first=self.study.recipe.members).folded()
        return lambda step_size: method.perturbation(Surroundings(step_size, student, source))

    def before(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The method's perturbation of a batch, as the trained student's training would do it next."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        assert method is not None
        student, size = study.load_training_student(self.method, self.seed), self.stage.done()["step_size"]
        perturb = self.perturbation(method, student)(size or 0.0)
        rng = generator("perturbed training images", 0)
        teachers = study.load_teachers(study.recipe.members).folded()
        return applied(perturb, teachers, method.temperature, rng)


@dataclass(frozen=True)
class Predict(Job):
    """The logits of one model on one split, saved."""

    study: Study
    model: str  # "teachers", or a method
    seed: int | None
    split: str  # "train", "valid", "test", or "train+METHOD": training images as that method perturbs them
    epochs: int = 1

    @property
    def name(self) -> str:
        return predicting(self.model, self.seed, self.split)

    @property
    def needs(self) -> list[Job]:
        """The trainings of the model, and of the student whose perturbation it sees."""
        perturbing = [self.perturbing] if self.perturbing else []
        if self.seed is not None:
            return [TrainStudent(self.study, self.model, self.seed), *perturbing]
        return [*(TrainTeacher(self.study, j) for j in range(self.count)), *perturbing]

    @property
    def path(self) -> Path:
        """Where the logits are."""
        return prediction_path(self.study.folder, self.model, self.seed, self.split)

    @property
    def key(self) -> str:
        """The hash of weights, images and perturbation."""
        stages = self.study.stages(self.model, self.seed, self.count)
        weights = [stage.done()["weights"] for stage in stages]
        spec: Spec = {"format": FORMAT, "weights": weights, "split": self.images.fingerprint}
        if self.perturbing:
            spec["perturb"] = self.perturbing.stage.key
            if self.study.recipe.methods[self.perturbing.method].needs_student:
                spec["student"] = self.perturbing.stage.done()["weights"]  # its gradients give the direction
        return spec_key(spec)

    @property
    def perturbing(self) -> TrainStudent | None:
        """The student whose perturbation the images go through."""
        _, _, method = self.split.partition("+")
        return TrainStudent(self.study, method, self.study.recipe.seeds[0]) if method else None

    @property
    def count(self) -> int:
        """How many teachers predict: on held-out images all, for the DEE curve; else the members' own."""
        return self.study.recipe.members if self.split.startswith("train") else self.study.teacher_count

    @property
    def images(self) -> Split:
        """The images themselves."""
        splits = self.study.splits
        held_out = {"valid": splits.valid, "test": splits.test}
        return held_out[self.split] if self.split in held_out else splits.train.some(TRAIN_SHOWN)

    def is_done(self) -> bool:
        """Whether the logits are there, made from the same weights and images."""
        return load_predictions(self.path, self.key) is not None

    def run(self, watch: Watch) -> None:
        study = self.study
        model = study.load_model(self.model, self.seed, self.count)
        before = self.perturbing.before() if self.perturbing else unchanged
        predictions = predict(model, self.images, before=before)
        save_predictions(self.path, predictions, self.key)
        watch.epoch({})


def predicting(model: str, seed: int | None, what: str) -> str:
    """What a person calls the job in which a model predicts something."""
    return f"predict {model}{'' if seed is None else f', seed {seed},'} on {what}"


def train(
    study: Study, stage: Stage, model: Ensemble, loss: Loss, plan: Plan, rng: torch.Generator, watch: Watch
) -> list[dict[str, float]]:
    """Fit a model in its stage's folder, with the processes of this one's group."""
    splits = study.splits
    mixed = splits.unlabelled if plan.unlabelled else None
    return fit(
        model,
        loss,
        splits.train.joined(mixed) if mixed else splits.train,
        splits.valid,
        plan,
        rng,
        device=study.device,
        checkpoint=stage,
        watch=watch,
        group=group_from_environment(),
    )


def finish(stage: Stage, model: nn.Module, facts: dict[str, Any]) -> None:
    """Keep a model's weights in its stage; the first process of a group does."""
    group_from_environment().from_first(lambda: stage.finish(model.state_dict(), facts))
