"""The trainings of a study: of a teacher, of a student, and short ones that find a step size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyphony.compute.devices import arithmetic
from polyphony.compute.parallel import group_from_environment
from polyphony.compute.seeds import generator
from polyphony.data.files import path_exists
from polyphony.distill import CrossEntropy, match_step_size
from polyphony.distill.match import is_at_end
from polyphony.distill.perturb import Perturbation, applied
from polyphony.distill.search import GROWTH, SEARCH_STEPS, search_epochs, search_name, short_schedule
from polyphony.ensembles import DeepEnsemble, Ensemble, Single
from polyphony.nn.weights import file_and_key
from polyphony.recipe import Distillation, PretrainedTeachers, Schedule
from polyphony.recipe.points import text_of
from polyphony.runs.stage import Stage
from polyphony.study.pretrained import answers, refuse_copies, refuse_unfit
from polyphony.study.provenance import machine, versions
from polyphony.study.series import LaterWatch, Series
from polyphony.study.study import Study
from polyphony.training.collapse import Row
from polyphony.training.fit import Checkpoint, Loss, Plan, Watch, fit
from polyphony.training.predict import predict
from polyphony.training.tally import DivergedError


class TrainingJob:
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
        self,
        checkpoint: Checkpoint,
        model: Ensemble,
        loss: Loss,
        plan: Plan,
        rng: torch.Generator,
        watch: Watch,
    ) -> list[Row]:
        """Train a model with all processes of the group; returns the log."""
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
            checkpoint=checkpoint,
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
class TrainTeacher(TrainingJob):
    """Trains teacher j on the labels, or imports its pretrained weights."""

    study: Study
    j: int

    kind: ClassVar[str] = "teacher"  # name of its cost

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


class StudentTraining(TrainingJob):
    """The base class of jobs that train students of one method."""

    method: str

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
    def needs(self) -> list[TrainTeacher | SearchStep]:
        """Its teachers. Pretrained teachers are all needed: every file is checked before students train."""
        if isinstance(self.study.recipe.teachers, PretrainedTeachers):
            return [TrainTeacher(self.study, j) for j in range(self.study.teacher_count)]
        return [*self.teachers]

    def teacher_hashes(self) -> dict[str, str]:
        numbers = [teacher.j for teacher in self.teachers]
        return {f"teachers/{j}": self.study.teacher(j).record()["weights"] for j in numbers}

    def new_student(self, purpose: str, seed: int) -> Ensemble:
        """A student with initial weights, on the study's device."""
        return self.study.fresh_student(self.method, generator(purpose, seed)).to(self.study.device)

    def training_plan(self, schedule: Schedule) -> Plan:
        """The settings of `fit` for the method."""
        plan = self.study.training_plan(schedule)
        return plan.replace(unlabelled=self.study.unlabelled_share(self.method))

    def distillation_loss(
        self, method: Distillation, teachers: DeepEnsemble, perturb: Perturbation, epochs: int
    ) -> Loss:
        """The loss of the method's form, for a training of this many epochs."""
        steps = self.study.student_steps(self.method, epochs)
        return self.study.recipe.form(self.method).loss(teachers, method, perturb, steps)

    def perturbation(self, method: Distillation) -> Callable[[float], Perturbation]:
        """A function that maps a step size to the method's perturbation. Loads the source teacher, if any."""
        source = None
        if method.source:
            source = self.study.load_teachers(1, first=self.study.recipe.members).folded()
        return lambda step_size: method.perturbation(step_size, source)


@dataclass(frozen=True)
class SearchStep(StudentTraining):
    """Finds the step size of a method with `step_size = "search"`; all seeds of the method use it.

    It trains a student for a few epochs with each of `SEARCH_STEPS`, from the same initial weights and with
    the same shuffles. The result is `GROWTH` times the step with the lowest calibrated validation NLL.
    done.json has all NLLs.
    """

    study: Study
    method: str

    @property
    def name(self) -> str:
        return search_name(self.method)

    @property
    def kind(self) -> str:
        """Name of its cost."""
        return self.name

    @property
    def schedule(self) -> Schedule:
        """The schedule of one short training."""
        return short_schedule(self.study.recipe.schedule(self.method))

    @property
    def epochs(self) -> int:
        return search_epochs(self.study.recipe.schedule(self.method))

    @property
    def folder(self) -> Path:
        return self.study.step_search(self.method).folder

    def train(self, stage: Stage, watch: Watch) -> None:
        study, group = self.study, group_from_environment()
        series = Series(stage, stage.load() if group.rank == 0 else None)
        method = study.recipe.distillation(self.method)
        assert method is not None
        teachers, perturbation = study.load_teachers(study.recipe.members).folded(), self.perturbation(method)
        finished = len(group.from_first(lambda: series.results))
        for place, step_size in [*enumerate(SEARCH_STEPS)][finished:]:
            loss = self.distillation_loss(method, teachers, perturbation(step_size), self.schedule.epochs)
            later = LaterWatch(watch, place * self.schedule.epochs)
            nll, log = self.try_loss(loss, series, later)
            if not math.isfinite(nll):
                watch.warn(f"{self.name}: {text_of(step_size, 'step_size')} diverged and is not chosen")
            group.from_first(partial(series.finish, nll, log))
        nlls = dict(zip(SEARCH_STEPS, group.from_first(lambda: series.results), strict=True))
        best = min(SEARCH_STEPS, key=lambda step_size: nlls[step_size])
        if not math.isfinite(nlls[best]):
            raise DivergedError(f"'{self.method}' diverged with every step size; lower its learning rate")
        tried = {f"{255 * size:g}/255": nll if math.isfinite(nll) else None for size, nll in nlls.items()}
        found = StepFound(GROWTH * best)
        self.finish(stage, found, series.log, {"step_size": GROWTH * best, "nll": tried})

    def try_loss(self, loss: Loss, series: Series, watch: Watch) -> tuple[float, list[Row]]:
        """The calibrated validation NLL after a short training (infinite if it diverges), and the log."""
        student, plan = self.new_student("search weights", 0), self.training_plan(self.schedule)
        try:
            log = self.fit(series, student, loss, plan, generator("search", 0), watch)
        except DivergedError:
            return math.inf, []

        def calibrated_nll() -> float:
            with arithmetic(deterministic=plan.deterministic):
                form = self.study.recipe.form(self.method)
                answers = predict(form.trained(student), self.study.data().valid)
            return answers.quality(answers.fit_temperature())["nll"]

        return group_from_environment().from_first(calibrated_nll), log


class StepFound(nn.Module):
    """A step size as weights, so that students record its hash like those of their teachers."""

    step_size: Tensor

    def __init__(self, step_size: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("step_size", torch.tensor(step_size, dtype=torch.float64))


@dataclass(frozen=True)
class TrainStudent(StudentTraining):
    """Trains the student of one method and seed. All methods of a seed start from the same weights."""

    study: Study
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def kind(self) -> str:
        """Name of its cost."""
        return self.method

    @property
    def epochs(self) -> int:
        return self.study.recipe.schedule(self.method).epochs

    @property
    def search(self) -> SearchStep | None:
        """The job that finds the step size, if the method has `step_size = "search"`."""
        return SearchStep(self.study, self.method) if self.study.recipe.searches_step(self.method) else None

    @property
    def needs(self) -> list[TrainTeacher | SearchStep]:
        return [*super().needs, *([self.search] if self.search else [])]

    @property
    def folder(self) -> Path:
        return self.study.student(self.method, self.seed).folder

    def teacher_hashes(self) -> dict[str, str]:
        """The hashes of its teachers, and of the step size if it was searched."""
        hashes = super().teacher_hashes()
        if self.search:
            folder = self.study.step_search(self.method)
            hashes[f"students/{self.method}/search"] = folder.record()["weights"]
        return hashes

    def train(self, stage: Stage, watch: Watch) -> None:
        study, student = self.study, self.new_student("student weights", self.seed)
        loss, step_size = self.loss()
        if step_size and study.recipe.setting(self.method, "step_size") == "match" and is_at_end(step_size):
            watch.warn(
                f"{self.name}: step_size = 'match' ended at {255 * step_size:.3g}/255, an end of its range:"
                " no step makes the teachers disagree as on validation images; set a number, such as '3/255'"
            )
        plan = self.training_plan(study.recipe.schedule(self.method))
        log = self.fit(stage, student, loss, plan, generator("student", self.seed), watch)
        proof = study.proof(self.method, student)
        facts = {"proof": proof.model_dump(mode="json")} if proof else {}
        self.finish(stage, student, log, {"step_size": step_size, **facts})

    def loss(self) -> tuple[Loss, float | None]:
        """The loss of the method, and its step size (None without a perturbation that takes steps)."""
        study, method = self.study, self.study.recipe.distillation(self.method)
        if method is None:
            return CrossEntropy(), None
        teachers = study.load_teachers(study.recipe.members).folded()
        make_perturbation = self.perturbation(method)
        step_size = self.step_size(method, teachers, make_perturbation)
        loss = self.distillation_loss(method, teachers, make_perturbation(step_size), self.epochs)
        return loss, step_size or None

    def step_size(
        self,
        method: Distillation,
        teachers: DeepEnsemble,
        make_perturbation: Callable[[float], Perturbation],
    ) -> float:
        """The method's step size; "search" and "match" give every seed the same number."""
        if method.step_size == "search":
            return float(self.study.step_search(self.method).weights()["step_size"])
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
