"""Run a study, or a part of it: results that exist are skipped, unfinished trainings are resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.recipe import Schedule
from polyphony.runs.rows import Score
from polyphony.runs.samples import keep_samples
from polyphony.runs.stage import Stage, locked, results_in, run_of
from polyphony.study.fingerprints import fingerprints
from polyphony.study.jobs import Training
from polyphony.study.leftovers import clear_the_way
from polyphony.study.plan import Upto, part, plan
from polyphony.study.provenance import code_named, refuse_sweep, write_provenance
from polyphony.study.score_table import write_scores
from polyphony.study.study import Study


@dataclass(frozen=True)
class Outcome:
    """What a study did, and its scores if it went that far."""

    ran: int
    skipped: int
    adopted: int
    scores: list[Score]


def run_study(
    study: Study, runner: Runner, board: Board, *, upto: Upto = Upto.EVALUATE, redo: bool = False
) -> Outcome:
    """Run teachers, students and predictions, each as soon as its inputs exist; then write the scores.

    A folder with a result of another key raises a ChangedError; with `redo` the result is replaced.
    """
    check_plans(study)
    refuse_sweep(study.folder)
    prints = fingerprints(study)
    jobs = plan(study, prints)
    work = Session(study.folder, runner, board)
    with locked(study.folder):
        with code_named(study):
            clear_the_way(jobs, board, redo)
        work.run(part(jobs, upto), lambda: write_provenance(study, prints))
        write_provenance(study, prints)
        keep_samples(study.folder, study.data(), prints.images)
        rows = write_scores(study, jobs) if upto == Upto.EVALUATE else []
    return Outcome(len(work.ran), len(work.found), work.adopted, rows)


def check_plans(study: Study) -> None:
    """Raise for a recipe that cannot run, before a folder is made."""
    for table in (study.recipe.teachers, study.recipe.student):
        if isinstance(table, Schedule):
            study.plan(table)


@dataclass
class Session:
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


def outlook(jobs: Sequence[Job], runs: Path) -> dict[str, str]:
    """The state of each job by name: done here, in another run, made with other settings, begun, or to do."""
    known = results_in(runs)
    return {job.name: state_of(job, known.get(job.key, [])) for job in jobs}


def state_of(job: Job, others: Sequence[Path]) -> str:
    if job.is_done():
        return "done"
    if isinstance(job.result, Stage) and (words := job.result.difference()):
        return f"made with another {words}"
    if others:
        return f"taken from {run_of(others[0])}"
    return "begun" if isinstance(job.result, Stage) and job.result.found() else "to do"


def take_over(jobs: Sequence[Job], runs: Path) -> set[str]:
    """Link the results that another run in this folder has; returns the names of their jobs.

    A student is linked only if its teachers are the same: it must have learned from the same weights.
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
