"""Analyses of a run: which jobs each has, when it is impossible, and which table it writes.

Each kind of job has two functions: one returns the job with its file and key, the other computes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyphony import analysis
from polyphony.compute.seeds import generator
from polyphony.data import Split, pixels
from polyphony.distill.perturb import ODS, Gaussian, Perturbation
from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.nn import factor_distance, factors
from polyphony.runs.predictions import prediction_path
from polyphony.runs.rows import FactorDistance, GradientSnr, JacobianCosine, TableRow
from polyphony.runs.scores import TEACHERS
from polyphony.runs.stage import locked
from polyphony.runs.store import Spec, spec_key
from polyphony.study.model_hashes import (
    ANALYSIS_FORMAT,
    model_hashes,
    models_key,
    trained_hash,
    weight_hashes,
)
from polyphony.study.saved import SavedRows, SavedTensors, write_table
from polyphony.study.study import TRAIN_SUBSET, Study
from polyphony.training.fit import Watch

Kind = TypeVar("Kind", bound=TableRow)
Student = tuple[str, int]  # method and seed
EXAMPLES = 500  # images of each split on which Jacobians are compared
SNR_BATCH, SNR_SAMPLES = 32, 50
SNR_STEPS = (1 / 4, 1 / 2, 1, 2, 4)  # factors of the recipe's ODS step size
NOISES: dict[str, Callable[[float], Perturbation]] = {
    "gaussian": lambda step_size: Gaussian(step_size=step_size),
    "ods": lambda step_size: ODS(step_size=step_size),
}
EXAMPLE_IMAGES = 8  # training images for which the predictions of every member are saved


@dataclass(frozen=True)
class Measure:
    """The work of an analysis job: calls a function and saves what it returns."""

    measure: Callable[[Watch], Any]  # must be picklable

    def run(self, result: SavedRows[Any] | SavedTensors, watch: Watch) -> None:
        result.save(self.measure(watch))
        watch.epoch({})


def rows_of(study: Study, kind: type[Kind], spec: Spec, name: str = "") -> SavedRows[Kind]:
    """The file of a job's rows; `name` distinguishes jobs of the same table."""
    path = study.folder / "analysis" / "parts" / f"{Path(kind.file).stem}{name}.json"
    return SavedRows(path, spec_key({"format": ANALYSIS_FORMAT, **spec}), kind)


def hashes_with_teachers(study: Study, student: Student) -> list[list[str]]:
    """The hashes of the weights of the teachers, and of a student."""
    return [model_hashes(study, TEACHERS, None), model_hashes(study, *student)]


def ods_setting(study: Study) -> tuple[float, float]:
    """Step size and temperature of the recipe's first method with ODS, else with ConfODS.

    Without such a method they come from the recipe's [student]; 1/255 stands for "match" and "search".
    """
    recipe = study.recipe
    for kind in ("ods", "confods"):
        for name, method in recipe.methods.items():
            settings = recipe.distillation(name)
            if method.label == kind and settings:
                record = study.student(name, recipe.seeds[0]).record()
                perturbation = settings.perturbation(record["step_size"] or 0.0)
                assert isinstance(perturbation, ODS)
                return perturbation.step_size, settings.temperature
    step_size = recipe.student.step_size
    return 1 / 255 if isinstance(step_size, str) else step_size, recipe.student.temperature


def jacobians_job(study: Study, student: Student, examples: int) -> Job:
    """Cosines between Jacobians of members and their teachers, on training and validation images."""
    spec = {
        "weights": hashes_with_teachers(study, student),
        "images": [split.fingerprint for split in jacobian_images(study, examples).values()],
    }
    method, seed = student
    saved = rows_of(study, JacobianCosine, spec, f"-{method}-{seed}")
    measure = Measure(partial(measure_jacobians, study, student, examples))
    return Job(f"Jacobians of {method}, seed {seed}", (), saved, measure, epochs=2)


def jacobian_images(study: Study, examples: int) -> dict[str, Split]:
    return {"train": study.data().train.some(examples), "valid": study.data().valid.some(examples)}


def measure_jacobians(study: Study, student: Student, examples: int, watch: Watch) -> list[JacobianCosine]:
    rows: list[JacobianCosine] = []
    models = study.load_teachers(study.recipe.members), study.load_student(*student)
    for name, split in jacobian_images(study, examples).items():
        cosines = analysis.jacobian_cosines(*models, split, watch=watch)
        for j, member_cosines in enumerate(cosines.tolist()):
            for i, cosine in enumerate(member_cosines):
                rows.append(JacobianCosine(name, *student, j, i, round(cosine, 6)))
        if name == "train":
            watch.epoch({})
    return rows


def snr_job(study: Study, student: Student, noise: str, scale: float) -> Job:
    """The SNR of a student's gradient under a perturbation with `scale` times the recipe's ODS step size."""
    spec = {
        "weights": hashes_with_teachers(study, student),
        "images": study.data().train.some(SNR_BATCH).fingerprint,
        "setting": [*ods_setting(study), scale, SNR_SAMPLES],
    }
    saved = rows_of(study, GradientSnr, spec, f"-{noise}-{scale:g}")
    measure = Measure(partial(measure_snr, study, student, noise, scale))
    return Job(f"gradient SNR of {noise} at {scale:g} × the step size", (), saved, measure)


def snr_steps(study: Study) -> list[float]:
    """The factors of the recipe's step size that give steps of at most 1."""
    step_size, _ = ods_setting(study)
    return [scale for scale in SNR_STEPS if scale * step_size <= 1]


def measure_snr(study: Study, student: Student, noise: str, scale: float, watch: Watch) -> list[GradientSnr]:
    base, temperature = ods_setting(study)
    batch, step_size = study.data().train.some(SNR_BATCH), scale * base
    snr = analysis.gradient_snr(
        study.load_student(*student),
        study.load_teachers(study.recipe.members),
        pixels(batch.images.to(study.device)),
        batch.labels.to(study.device),
        NOISES[noise](step_size),
        temperature,
        generator("gradient samples", 0),  # the same draws at every step size
        SNR_SAMPLES,
        watch,
    )
    return [GradientSnr(noise, step_size, snr.unbiased, SNR_SAMPLES, snr.literal)]


def transfer_job(study: Study) -> Job:
    """The teachers' predictions on training images that an extra teacher perturbs by ODS."""
    spec: Spec = {
        "format": ANALYSIS_FORMAT,
        "weights": [*model_hashes(study, TEACHERS, None), trained_hash(study.teacher(study.recipe.members))],
        "split": study.data().train.some(TRAIN_SUBSET).fingerprint,
        "external": ods_setting(study),
    }
    saved = SavedTensors(prediction_path(study.folder, TEACHERS, None, "train+external"), spec_key(spec))
    return Job("teachers through an external one", (), saved, Measure(partial(measure_transfer, study)))


def measure_transfer(study: Study, watch: Watch) -> dict[str, Tensor]:
    members, rng = study.recipe.members, generator("perturbed training images", 0)
    teachers, source = study.load_teachers(members), study.load_teachers(1, first=members)
    images = study.data().train.some(TRAIN_SUBSET)
    predictions = analysis.external_predictions(teachers, source, images, *ods_setting(study), rng)
    return {"logits": predictions.logits, "labels": predictions.labels}


def members_job(study: Study) -> Job:
    """Some training images with the predictions of every teacher, and of every member of the first seed."""
    images = example_images(study).fingerprint
    spec = {"models": models_key(study), "images": images, "step": ods_setting(study)}
    saved = SavedTensors(study.folder / "analysis" / "members.safetensors", spec_key(spec))
    return Job("predictions of members", (), saved, Measure(partial(measure_members, study)))


def example_images(study: Study) -> Split:
    train = study.data().train
    return train[torch.randperm(len(train), generator=generator("images shown", 0))[:EXAMPLE_IMAGES]]


def measure_members(study: Study, watch: Watch) -> dict[str, Tensor]:
    step_size, temperature = ods_setting(study)
    first = study.recipe.seeds[0]
    return analysis.member_views(
        study.load_teachers(study.recipe.members),
        {name: study.load_student(name, first) for name in study.recipe.methods},
        example_images(study),
        ODS().build(step_size),  # a stored recipe may have a step above 1
        temperature,
        generator("images shown", 1),
    )


def factors_job(study: Study, students: Sequence[Student]) -> Job:
    """Distances between the rank-one factors of the members of some students."""
    saved = rows_of(study, FactorDistance, {"models": models_key(study)})
    return Job("distances of factors", (), saved, Measure(partial(measure_factors, study, students)))


def measure_factors(study: Study, students: Sequence[Student], watch: Watch) -> list[FactorDistance]:
    rows: list[FactorDistance] = []
    for student in students:
        rows.append(FactorDistance(*student, factor_distance(study.load_student(*student))))
        watch.step(len(rows), len(students), {})
    return rows


@dataclass(frozen=True)
class Analysis:
    """An analysis of a run's models.

    `jobs` returns its jobs for a study, students and a number of images. `table` is written from the rows of
    all jobs; without a table, each job's file is the result. `obstacle` returns why the analysis is
    impossible, or None. `methods` returns the methods whose students can be analysed; `skip_reason` says why
    the others are skipped. A study runs the `short` analyses itself: they take seconds.
    """

    jobs: Callable[[Study, Sequence[Student], int], list[Job]]
    table: type[TableRow] | None = None
    obstacle: Callable[[Study], str | None] = lambda study: None
    methods: Callable[[Study], list[str]] = lambda study: list(study.recipe.methods)
    skip_reason: str = ""
    short: bool = False

    def files(self, study: Study, jobs: Sequence[Job]) -> list[Path]:
        """The files of the results of finished jobs; writes the table, if the analysis has one."""
        if self.table is None:
            return [job.result.path for job in jobs if isinstance(job.result, SavedTensors)]
        parts = [job.result for job in jobs if isinstance(job.result, SavedRows)]
        return [write_table(study.folder, self.table, [row for part in parts for row in part.load()])]


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have one independent member for each teacher."""
    forms = {name: study.recipe.form(name) for name in study.recipe.methods}
    independent = [name for name, form in forms.items() if form.one_to_one and not form.mixes_members]
    return [name for name in independent if study.predicting_members(name) == study.recipe.members]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    several = [name for name in study.recipe.methods if study.predicting_members(name) > 1]
    return [name for name in several if any(True for _ in factors(study.blank_student(name)))]


def plain_student(study: Study) -> Student:
    """The student whose gradients are measured: of the first method without perturbation, else of the first.

    Distilled students come before those trained from scratch.
    """
    methods = {name: study.recipe.methods[name] for name in one_to_one(study)}
    distilled = [name for name, method in methods.items() if method.perturb] or list(methods)
    return min(distilled, key=lambda name: methods[name].perturbs), study.recipe.seeds[0]


def missing_source(study: Study) -> str | None:
    """Why the run has no extra teacher, or None if it has one; raises a FileError if it is not trained."""
    if study.recipe.teachers.extra == 0:
        return "the recipe has no extra teacher (teachers.extra) to take directions from"
    trained_hash(study.teacher(study.recipe.members))
    return None


ANALYSES = {
    "jacobians": Analysis(
        lambda study, students, examples: [jacobians_job(study, each, examples) for each in students],
        JacobianCosine,
        methods=one_to_one,
        skip_reason="it does not have one independent member for each teacher",
    ),
    "snr": Analysis(
        lambda study, *_: [
            snr_job(study, plain_student(study), noise, scale)
            for noise in NOISES
            for scale in snr_steps(study)
        ],
        GradientSnr,
        methods=one_to_one,
    ),
    "factors": Analysis(
        lambda study, students, _: [factors_job(study, students)],
        FactorDistance,
        lambda study: "the student has one member; distances need two" if study.recipe.members == 1 else None,
        with_factors,
        "its members do not differ by rank-one factors",
        short=True,
    ),
    "transfer": Analysis(lambda study, *_: [transfer_job(study)], obstacle=missing_source, short=True),
    "members": Analysis(lambda study, *_: [members_job(study)], short=True),
}
SHORT = [name for name, entry in ANALYSES.items() if entry.short]


@dataclass(frozen=True)
class AnalysisOutcome:
    """What `analyse` did."""

    ran: int  # number of jobs
    files: list[Path]  # results, new or reused
    left_out: dict[str, str]  # analysis, or analysis and method → why it was skipped


def analyse(
    study: Study, names: Collection[str], runner: Runner, board: Board, examples: int = EXAMPLES
) -> AnalysisOutcome:
    """Run the analyses with these names (keys of `ANALYSES`); results that exist are reused.

    `examples` is the number of images of each split on which Jacobians are compared.
    """
    left_out = {name: reason for name in names if (reason := ANALYSES[name].obstacle(study))}
    chosen: list[tuple[Analysis, list[Job]]] = []
    with locked(study.folder):
        weight_hashes(study)  # raises if a model is not trained
        for name, entry in ANALYSES.items():
            if name not in names or name in left_out:
                continue
            methods = entry.methods(study)
            if not methods:
                left_out[name] = "no student has the members that it needs"
                continue
            students = [(method, seed) for method, seed in study.students if method in methods]
            chosen.append((entry, entry.jobs(study, students, examples)))
            others = [method for method in study.recipe.methods if method not in methods]
            left_out |= {f"{name} of {method}": entry.skip_reason for method in others if entry.skip_reason}
        graph = Graph(not_done(job for _, jobs in chosen for job in jobs))
        runner.run(graph, board)
        files = [path for entry, jobs in chosen for path in entry.files(study, jobs)]
    return AnalysisOutcome(len(graph.ran), files, left_out)
