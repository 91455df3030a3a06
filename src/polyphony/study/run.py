"""Run a study, or a part of it: what is done is skipped, what is half done goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.recipe import NetworkTable, Recipe, RecipeError, Schedule, check
from polyphony.recipe.python import changed_code, keep_code
from polyphony.recipe.sources import KEPT
from polyphony.runs.rows import Score
from polyphony.runs.store import (
    ChangedError,
    FileError,
    Stage,
    StoreError,
    locked,
    read_json,
    results_in,
    write_json,
)
from polyphony.study.jobs import Training
from polyphony.study.leftovers import clear_the_way, forget
from polyphony.study.origin import machine, network_kinds, versions
from polyphony.study.plan import Fingerprints, Upto, fingerprints, part, plan
from polyphony.study.score_table import write_scores
from polyphony.study.study import Study


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
    """Teachers, students, predictions, each as soon as what it needs is there; then the scores.

    A folder that holds a result of another key is refused by a ChangedError; with `redo` it is replaced.
    """
    check_plans(study)
    refuse_sweep(study.folder)
    prints = fingerprints(study)
    jobs = plan(study, prints)
    work = Work(study.folder, runner, board)
    with locked(study.folder):
        with code_named(study):
            clear_the_way(jobs, board, redo)
        work.run(part(jobs, upto), lambda: write_provenance(study, prints))
        write_provenance(study, prints)
        rows = write_scores(study, jobs) if upto == Upto.EVALUATE else []
    return Outcome(len(work.ran), len(work.found), work.adopted, rows)


def check_plans(study: Study) -> None:
    """Raise for a recipe that cannot be followed, so that it leaves no folder behind."""
    for table in (study.recipe.teachers, study.recipe.student):
        if isinstance(table, Schedule):
            study.plan(table)


@dataclass
class Work:
    """Jobs in one folder: which were run, and which were there before or in another run."""

    folder: Path
    runner: Runner
    board: Board
    ran: set[str] = field(default_factory=set)  # names of jobs
    found: set[str] = field(default_factory=set)
    adopted: int = 0  # how many of these were found in other runs

    def run(self, jobs: Sequence[Job], begin: Callable[[], None]) -> None:
        """Run what is missing of these jobs; `begin` is called before the first, if there is any."""
        missing = not_done(jobs)
        if missing:
            begin()
        taken = take_over(missing, self.folder.parent)
        graph = Graph([job for job in missing if job.name not in taken])
        self.adopted += len(taken)
        try:
            self.runner.run(graph, self.board)
        finally:
            self.ran |= graph.ran
            self.found |= ({job.name for job in jobs} - {job.name for job in missing} | taken) - self.ran


def take_over(jobs: Sequence[Job], runs: Path) -> set[str]:
    """Link the results that another run of this folder has; the names of their jobs.

    A student is taken only with its teachers, or after them: it must have learnt from the same weights.
    """
    known = results_in(runs) if jobs else {}
    waiting, taken = {job.name for job in jobs}, set()
    for job in jobs:
        if not isinstance(job.work, Training) or not waiting.isdisjoint(job.needs):
            continue
        stage, seen = job.result, job.work.seen()
        if isinstance(stage, Stage) and any(stage.take_over(each, seen) for each in known.get(job.key, [])):
            waiting.remove(job.name)
            taken.add(job.name)
    return taken


def write_provenance(study: Study, prints: Fingerprints) -> None:
    """recipe.json: the resolved recipe, the data, versions and machine."""
    splits = study.splits
    record = {
        "recipe": study.recipe.model_dump(mode="json", exclude_none=True),
        "data": {"origin": splits.origin, **prints.images},
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
        forget(study.folder, [study.folder / "predictions"])
    keep_code(study.recipe, study.folder / KEPT)
    write_json(path, record)


@contextmanager
def code_named(study: Study) -> Iterator[None]:
    """A ChangedError also names the user's function that differs from the run's copy, if one does."""
    try:
        yield
    except ChangedError as error:
        where = changed_code(study.recipe, study.folder / KEPT)
        raise ChangedError(f"{error}; changed since: {where}") if where else error from None


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
