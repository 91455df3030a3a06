"""Run a study, or a part of it: what is done and unchanged is skipped, what is half done goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from polyphony.recipe import check
from polyphony.rows import Score
from polyphony.store import StoreError, locked, read_json, write_json
from polyphony.study.jobs import Job, TrainStudent, TrainTeacher
from polyphony.study.origin import machine, training_code, versions
from polyphony.study.pool import Board, Pool
from polyphony.study.saved import write_table
from polyphony.study.score_table import score, score_jobs
from polyphony.study.study import Study


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
    study: Study, board: Board, *, upto: Upto = Upto.EVALUATE, workers: int | None = None, redo: bool = False
) -> Outcome:
    """Teachers, then students, then predictions and scores, in as many processes as fit the cores."""
    for schedule in (study.recipe.teachers, study.recipe.student):
        study.plan(schedule)  # a recipe that cannot be followed leaves no folder behind
    refuse_sweep(study.folder)
    workers = workers or default_workers(study)
    phases: list[Callable[[], Sequence[Job]]] = [
        lambda: [TrainTeacher(study, j) for j in range(study.teacher_count)],
        lambda: [TrainStudent(study, method, seed) for method, seed in study.students],
        lambda: score_jobs(study),
    ]
    ran = total = adopted = 0
    with locked(study.folder), Pool(workers, study.threads) as pool:
        for jobs in (phase() for phase in phases[:upto]):
            missing = pending(study, jobs, redo)
            todo = [job for job in missing if not adopt(job)]
            if missing:  # nothing is written before it is known that what is there fits
                write_provenance(study)
            pool.run(todo, board)
            ran, total = ran + len(todo), total + len(jobs)
            adopted += len(missing) - len(todo)
        if upto < Upto.DISTILL:  # the record must fit students that are there already
            pending(study, phases[1](), redo)
        write_provenance(study)
        rows = score(study) if upto == Upto.EVALUATE else []
        if rows:
            write_table(study.folder, Score, rows)
    return Outcome(ran, total - ran, adopted, rows)


def pending(study: Study, jobs: Sequence[Job], redo: bool) -> list[Job]:
    """The jobs that are not done. One made from another recipe is refused, or with `redo` thrown away."""
    stages = [job.stage for job in jobs if isinstance(job, TrainTeacher | TrainStudent)]
    discarded = [stage.discard_if_changed() for stage in stages] if redo else []
    if any(discarded):
        forget(study.folder)
    return [job for job in jobs if not job.is_done()]


def adopt(job: Job) -> bool:
    """Take over a training that another run beside this one has done already; whether there is one."""
    if not isinstance(job, TrainTeacher | TrainStudent):
        return False
    pattern = "*/teachers/*/done.json" if isinstance(job, TrainTeacher) else "*/students/*/*/done.json"
    beside = sorted(job.study.folder.parent.glob(pattern))
    return job.stage.adopt((path.parent for path in beside), training_code())


def forget(folder: Path) -> None:
    """Throw away what was measured on models or images that are no longer those of the run."""
    for name in ("analysis", "predictions", "figures"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("scores.csv", "report.html"):
        (folder / name).unlink(missing_ok=True)


def default_workers(study: Study) -> int:
    """As many processes as the cores have room for; a GPU is not shared."""
    return max(1, (os.cpu_count() or 1) // study.threads) if study.device == "cpu" else 1


def write_provenance(study: Study) -> None:
    """recipe.json: the resolved recipe, the data, versions and machine."""
    splits = study.splits
    record = {
        "recipe": study.recipe.model_dump(mode="json", exclude_none=True),
        "data": {
            "origin": splits.origin,
            **{name: getattr(splits, name).fingerprint for name in ("train", "valid", "test")},
        },
        "versions": versions(),
        "machine": machine(study),
    }
    path = study.folder / "recipe.json"
    if path.exists() and read_json(path).get("data") != record["data"]:
        forget(study.folder)
    write_json(path, record)


def open_study(folder: Path, data_root: Path | None, device: str) -> Study:
    """The study whose results are in a folder."""
    refuse_sweep(folder)
    path = folder / "recipe.json"
    if not path.is_file():
        raise StoreError(f"{folder} is not a run folder: it has no recipe.json; 'polyphony study' makes one")
    table = read_json(path).get("recipe")
    if not isinstance(table, dict):
        raise StoreError(f"{path} does not hold a recipe: give 'polyphony study' the recipe again")
    return Study(check(table, str(path)), folder, data_root, device)


def refuse_sweep(folder: Path) -> None:
    """Raise for the folder of a sweep, which must not see test images."""
    if (folder / "sweep.json").exists():
        raise StoreError(
            f"{folder} holds a sweep, and its test images stay unseen:"
            " put the point it found into a recipe and study that in another folder"
        )
