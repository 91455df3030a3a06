"""Analyses of a run: the jobs of each, when it is impossible, and the table it writes.

For each kind of job, one function makes the job with its file and key, and another measures.
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
from polyphony.study.evaluation import ANALYSIS_FORMAT, model_hashes, models_key, weight_hashes, weights_of
from polyphony.study.jobs import TRAIN_SHOWN
from polyphony.study.saved import SavedRows, SavedTensors, write_table
from polyphony.study.study import Study
from polyphony.training.fit import Watch

Kind = TypeVar("Kind", bound=TableRow)
Student = tuple[str, int]  # method and seed
EXAMPLES = 500  # images of a split whose Jacobians are compared
SNR_BATCH, SNR_SAMPLES = 32, 50
SNR_STEPS = (1 / 4, 1 / 2, 1, 2, 4)  # times the recipe's ODS step size
NOISES: dict[str, Callable[[float], Perturbation]] = {
    "gaussian": lambda step_size: Gaussian(step_size=step_size),
    "ods": lambda step_size: ODS(step_size=step_size),
}
IMAGES_SHOWN = 8


@dataclass(frozen=True)
class Measure:
    """Measures trained models, and saves the result."""

    measure: Callable[[Watch], Any]  # returns what is saved; it must be picklable

    def run(self, result: SavedRows[Any] | SavedTensors, watch: Watch) -> None:
        result.save(self.measure(watch))
        watch.epoch({})


def rows_of(study: Study, kind: type[Kind], spec: Spec, name: str = "") -> SavedRows[Kind]:
    """The file of one job's rows; `name` distinguishes jobs of the same table."""
    path = study.folder / "analysis" / "parts" / f"{Path(kind.file).stem}{name}.json"
    return SavedRows(path, spec_key({"format": ANALYSIS_FORMAT, **spec}), kind)


def hashes_with_teachers(study: Study, student: Student) -> list[list[str]]:
    return [model_hashes(study, TEACHERS, None), model_hashes(study, *student)]


def ods_setting(study: Study) -> tuple[float, float]:
    """Step size and temperature of the recipe's first method with ODS, or ConfODS, or of all students."""
    recipe = study.recipe
    for kind in ("ods", "confods"):
        for name, method in recipe.methods.items():
            settings = recipe.distillation(name)
            if method.label == kind and settings:
                done = study.student(name, recipe.seeds[0]).record()
                return float(done["step_size"]), settings.temperature
    step_size = recipe.student.step_size
    return 1 / 255 if step_size == "match" else step_size, recipe.student.temperature


def jacobians_job(study: Study, student: Student, examples: int) -> Job:
    """Cosines between Jacobians of members and their teachers, on training and validation images."""
    spec = {
        "weights": hashes_with_teachers(study, student),
        "images": [split.fingerprint for split in images_compared(study, examples).values()],
    }
    method, seed = student
    saved = rows_of(study, JacobianCosine, spec, f"-{method}-{seed}")
    measure = Measure(partial(match_jacobians, study, student, examples))
    return Job(f"Jacobians of {method}, seed {seed}", (), saved, measure, epochs=2)


def images_compared(study: Study, examples: int) -> dict[str, Split]:
    return {"train": study.data().train.some(examples), "valid": study.data().valid.some(examples)}


def match_jacobians(study: Study, student: Student, examples: int, watch: Watch) -> list[JacobianCosine]:
    rows: list[JacobianCosine] = []
    models = study.load_teachers(study.recipe.members), study.load_student(*student)
    for name, split in images_compared(study, examples).items():
        cosines = analysis.jacobian_cosines(*models, split, watch=watch)
        for j, member in enumerate(cosines.tolist()):
            rows += [
                JacobianCosine(name, *student, j, i, round(cosine, 6)) for i, cosine in enumerate(member)
            ]
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


def measure_snr(study: Study, student: Student, noise: str, scale: float, watch: Watch) -> list[GradientSnr]:
    base, temperature = ods_setting(study)
    batch, step_size = study.data().train.some(SNR_BATCH), scale * base
    found = analysis.gradient_snr(
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
    return [GradientSnr(noise, step_size, found.unbiased, SNR_SAMPLES, found.literal)]


def transfer_job(study: Study) -> Job:
    """The teachers on training images perturbed by ODS with directions of an extra teacher."""
    spec: Spec = {
        "format": ANALYSIS_FORMAT,
        "weights": [*model_hashes(study, TEACHERS, None), weights_of(study.teacher(study.recipe.members))],
        "split": study.data().train.some(TRAIN_SHOWN).fingerprint,
        "external": ods_setting(study),
    }
    saved = SavedTensors(prediction_path(study.folder, TEACHERS, None, "train+external"), spec_key(spec))
    return Job("teachers through an external one", (), saved, Measure(partial(measure_transfer, study)))


def measure_transfer(study: Study, watch: Watch) -> dict[str, Tensor]:
    members, rng = study.recipe.members, generator("perturbed training images", 0)
    teachers, source = study.load_teachers(members), study.load_teachers(1, first=members)
    images = study.data().train.some(TRAIN_SHOWN)
    found = analysis.external_predictions(teachers, source, images, *ods_setting(study), rng)
    return {"logits": found.logits, "labels": found.labels}


def members_job(study: Study) -> Job:
    """Some training images with the answers of every teacher, and of every member for the first seed."""
    images = images_shown(study).fingerprint
    spec = {"models": models_key(study), "images": images, "step": ods_setting(study)}
    saved = SavedTensors(study.folder / "analysis" / "members.safetensors", spec_key(spec))
    return Job("predictions of members", (), saved, Measure(partial(show_members, study)))


def images_shown(study: Study) -> Split:
    train = study.data().train
    return train[torch.randperm(len(train), generator=generator("images shown", 0))[:IMAGES_SHOWN]]


def show_members(study: Study, watch: Watch) -> dict[str, Tensor]:
    step_size, temperature = ods_setting(study)
    first = study.recipe.seeds[0]
    return analysis.member_views(
        study.load_teachers(study.recipe.members),
        {name: study.load_student(name, first) for name in study.recipe.methods},
        images_shown(study),
        ODS(step_size=step_size),
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
    """An analysis of a run's models. `jobs` makes its jobs from a study, students and a number of images.

    `table` holds the rows of all jobs; without a table, each job's file is the result. `obstacle` says why a
    run cannot have it, if so. `methods` are those whose students can be analysed, and `lacking` says what the
    others lack. A study ends with the analyses that are `short`: they take seconds.
    """

    jobs: Callable[[Study, Sequence[Student], int], list[Job]]
    table: type[TableRow] | None = None
    obstacle: Callable[[Study], str | None] = lambda study: None
    methods: Callable[[Study], list[str]] = lambda study: list(study.recipe.methods)
    lacking: str = ""
    short: bool = False

    def files(self, study: Study, jobs: Sequence[Job]) -> list[Path]:
        if self.table is None:
            return [job.result.path for job in jobs if isinstance(job.result, SavedTensors)]
        saved = [job.result for job in jobs if isinstance(job.result, SavedRows)]
        return [write_table(study.folder, self.table, [row for each in saved for row in each.load()])]


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have a member for each teacher that depends on its own input alone."""
    forms = {name: study.recipe.form(name) for name in study.recipe.methods}
    alone = [name for name, form in forms.items() if form.one_to_one and not form.mixes_members]
    return [name for name in alone if study.members(name) == study.recipe.members]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    several = [name for name in study.recipe.methods if study.members(name) > 1]
    return [name for name in several if any(True for _ in factors(study.blank_student(name)))]


def plain_student(study: Study) -> Student:
    """The student whose gradients are measured: of plain distillation, or else the first distilled one."""
    methods = {name: study.recipe.methods[name] for name in one_to_one(study)}
    distilled = [name for name, method in methods.items() if method.perturb] or list(methods)
    return min(distilled, key=lambda name: methods[name].perturbs), study.recipe.seeds[0]


def lacks_a_source(study: Study) -> str | None:
    """Why directions of another teacher are missing, if so; raises if that teacher is not trained."""
    if study.recipe.teachers.extra == 0:
        return "the recipe has no extra teacher (teachers.extra) to take directions from"
    weights_of(study.teacher(study.recipe.members))
    return None


ANALYSES = {
    "jacobians": Analysis(
        lambda study, students, n: [jacobians_job(study, each, n) for each in students],
        JacobianCosine,
        methods=one_to_one,
        lacking="it does not have one independent member for each teacher",
    ),
    "snr": Analysis(
        lambda study, *_: [
            snr_job(study, plain_student(study), noise, scale) for noise in NOISES for scale in SNR_STEPS
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
    "transfer": Analysis(lambda study, *_: [transfer_job(study)], obstacle=lacks_a_source, short=True),
    "members": Analysis(lambda study, *_: [members_job(study)], short=True),
}
SHORT = [name for name, each in ANALYSES.items() if each.short]


@dataclass(frozen=True)
class Analysed:
    """How many jobs ran, which files there are now, what was left out and why."""

    ran: int
    files: list[Path]
    left_out: dict[str, str]


def analyse(
    study: Study, what: Collection[str], runner: Runner, board: Board, examples: int = EXAMPLES
) -> Analysed:
    """Run the analyses of these names (keys of `ANALYSES`); results that exist are not made again."""
    left_out = {name: reason for name in what if (reason := ANALYSES[name].obstacle(study))}
    chosen: list[tuple[Analysis, list[Job]]] = []
    with locked(study.folder):
        weight_hashes(study)  # raises if something is not trained
        for name in [name for name in ANALYSES if name in what and name not in left_out]:
            each = ANALYSES[name]
            if methods := each.methods(study):
                students = [student for student in study.students if student[0] in methods]
                chosen.append((each, each.jobs(study, students, examples)))
                others = [method for method in study.recipe.methods if method not in methods]
                left_out |= {f"{name} of {method}": each.lacking for method in others if each.lacking}
            else:
                left_out[name] = "no student has the members that it needs"
        graph = Graph(not_done(job for _, jobs in chosen for job in jobs))
        runner.run(graph, board)
        files = [path for each, jobs in chosen for path in each.files(study, jobs)]
    return Analysed(len(graph.ran), files, left_out)
