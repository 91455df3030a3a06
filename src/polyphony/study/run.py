"""Run a study, or a part of it: what is done and unchanged is skipped, what is half done goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from polyphony.recipe import NetworkTable, Recipe, RecipeError, Schedule, check
from polyphony.runs.rows import Score
from polyphony.runs.store import FileError, StoreError, locked, read_json, write_json
from polyphony.study.jobs import TrainingJob, TrainStudent, TrainTeacher
from polyphony.study.origin import machine, network_kinds, versions
from polyphony.study.runner import Board, Graph, Job, Runner, not_done
from polyphony.study.score_table import score_jobs, write_scores
from polyphony.study.study import TAUGHT, Study


class Upto(IntEnum):
    """How far a study goes."""

    TEACH = 1
    DISTILL = 2
    EVALUATE = 3


@dataclass(frozen=True)
class Outcome:
    """What a study did, and, if it went that far, its scores."""

    ran: int
    skipped: int
    adopted: int
    scores: list[Score]


def run_study(
    study: Study, runner: Runner, board: Board, *, upto: Upto = Upto.EVALUATE, redo: bool = False
) -> Outcome:
    """Teachers, students, predictions, each as soon as what it needs is there; then the scores."""
    check_plans(study)
    refuse_sweep(study.folder)
    work = Work(runner, board, redo)
    with locked(study.folder):
        work.check(study)
        work.run(jobs_of(study, upto), lambda: write_provenance(study))
        if upto < Upto.DISTILL:  # the record must fit students that are there already
            work.missing(students_of(study))
        write_provenance(study)
        rows = write_scores(study) if upto == Upto.EVALUATE else []
    return Outcome(len(work.ran), len(work.found), work.adopted, rows)


def check_plans(study: Study) -> None:
    """Raise for a recipe that cannot be followed, so that it leaves no folder behind."""
    for table in (study.recipe.teachers, study.recipe.student):
        if isinstance(table, Schedule):
            study.plan(table)


def jobs_of(study: Study, upto: Upto) -> list[Job]:
    """Everything a study does on its way, in the order in which it is done where there is a choice."""
    students = students_of(study) if upto >= Upto.DISTILL else []
    predictions = score_jobs(study) if upto >= Upto.EVALUATE else []
    return [*teachers_of(study), *students, *predictions]


def teachers_of(study: Study) -> list[TrainTeacher]:
    """The training of every teacher."""
    return [TrainTeacher(study, j) for j in range(study.teacher_count)]


def students_of(study: Study) -> list[TrainStudent]:
    """The training of every student."""
    return [TrainStudent(study, method, seed) for method, seed in study.students]


class Work:
    """Jobs under way in one folder: what is done is skipped, or taken over from runs beside it."""

    def __init__(self, runner: Runner, board: Board, redo: bool) -> None:
        self.runner, self.board, self.redo = runner, board, redo
        self.ran: set[str] = set()  # names of jobs that were run
        self.found: set[str] = set()  # and of those that were there, or were taken over
        self.adopted = 0  # how many were taken over

    def check(self, study: Study) -> None:
        """Refuse students made with other settings, before anything is trained, teachers included."""
        for name, seed in () if self.redo else study.students:
            study.untaught_stage(name, seed).check_settings(besides=TAUGHT)

    def run(self, jobs: Sequence[Job], begin: Callable[[], None]) -> None:
        """Run what is missing of these jobs; `begin` is called once before the first, if there is any."""
        begin_once = cache(begin)

        def missing(asked: Sequence[Job]) -> list[Job]:
            found = self.missing(asked)
            if found:  # nothing is written before it is known that what is there fits
                begin_once()
            return [job for job in found if not self.adopt(job)]

        graph = Graph(jobs, missing)
        try:
            self.runner.run(graph, self.board)
        finally:
            self.ran |= graph.ran
            self.found |= graph.found - self.ran

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that are not done. One made from another recipe is refused, or with `redo` thrown away."""
        for job in jobs if self.redo else ():
            if isinstance(job, TrainingJob) and (stage := job.stage).is_changed():
                forget(job.study.folder, job.predictions)  # first, while a next call can see the change
                stage.discard()
        return not_done(jobs)

    def adopt(self, job: Job) -> bool:
        """Take over a training that another run beside this one has done already; whether there is one."""
        adopted = isinstance(job, TrainingJob) and job.stage.adopt(finished_beside(job), job.code)
        self.adopted += adopted
        return adopted


def finished_beside(job: TrainingJob) -> list[Path]:
    """The folders of finished teachers, or students, in this run and those beside it."""
    kind, *numbers = job.stage.folder.relative_to(job.study.folder).parts
    pattern = "/".join(["*", kind, *("*" for _ in numbers), "done.json"])
    return [path.parent for path in sorted(job.study.folder.parent.glob(pattern))]


def forget(folder: Path, predictions: Path) -> None:
    """Throw away what was measured on models or images that are no longer those of the run."""
    for path in (folder / "analysis", folder / "figures", predictions):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("scores.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)


def write_provenance(study: Study) -> None:
    """recipe.json: the resolved recipe, the data, versions and machine."""
    splits = study.splits
    fingerprints = {name: getattr(splits, name).fingerprint for name in ("train", "valid", "test")}
    record = {
        "recipe": study.recipe.model_dump(mode="json", exclude_none=True),
        "data": {"origin": splits.origin, **fingerprints},
        "images": {
            "classes": splits.classes,
            "shape": list(splits.train.images.shape[1:]),
            "resize": splits.resize,
        },
        "network": network_here(study.recipe.student_network),
        "versions": versions(network_kinds(study.recipe)),
        "machine": machine(study),
    }
    path = study.folder / "recipe.json"
    if path.exists() and read_json(path).get("data") != record["data"]:
        forget(study.folder, study.folder / "predictions")
    write_json(path, record)


def network_here(table: NetworkTable) -> dict[str, Any]:
    """The students' network without the files that its table names; nothing where it names none, or must."""
    try:
        found = table.portable()
    except RecipeError:
        return {}
    return {} if found is table else found.model_dump(mode="json", exclude_none=True)


def open_study(folder: Path, data_root: Path | None, device: str) -> Study:
    """The study whose results are in a folder."""
    refuse_sweep(folder)
    return Study(stored_recipe(folder), folder, data_root, device)


def stored_recipe(folder: Path, code: bool = True) -> Recipe:
    """The recipe of a run; without code, nothing that it names is imported."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise FileError(path, f"is not there: {folder} is not a run folder")
    table = read_json(path).get("recipe")
    if not isinstance(table, dict):
        raise FileError(path, "does not hold a recipe")
    return check(table, str(path), code=code)


def refuse_sweep(folder: Path) -> None:
    """Raise for the folder of a sweep, which must not see test images."""
    if (folder / "sweep.json").exists():
        raise StoreError(
            f"{folder} holds a sweep, and its test images stay unseen:"
            " put the point it found into a recipe and study that in another folder"
        )
