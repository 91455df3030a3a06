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
from polyphony.study.leftovers import resolve_conflicts
from polyphony.study.plan import Upto, jobs_upto, plan
from polyphony.study.provenance import naming_changed_code, refuse_sweep, write_provenance
from polyphony.study.score_table import write_scores
from polyphony.study.study import Study
from polyphony.study.trainings import TrainingJob


@dataclass(frozen=True)
class Outcome:
    """How many jobs of a study ran, and its scores."""

    ran: int
    skipped: int  # jobs whose results existed
    adopted: int  # how many of these were linked from other runs
    scores: list[Score]  # empty if the study stopped before the evaluation


def run_study(
    study: Study, runner: Runner, board: Board, *, upto: Upto = Upto.EVALUATE, redo: bool = False
) -> Outcome:
    """Train teachers and students, predict, and write the scores; results that exist are reused.

    Raises a ChangedError if the folder has results with other keys; `redo` removes them instead.
    """
    check_batches(study)
    refuse_sweep(study.folder)
    prints = fingerprints(study)
    jobs = plan(study, prints)
    session = Session(study.folder, runner, board)
    with locked(study.folder):
        with naming_changed_code(study):
            resolve_conflicts(jobs, board, redo)
        session.run(jobs_upto(jobs, upto), lambda: write_provenance(study, prints))
        write_provenance(study, prints)
        keep_samples(study.folder, study.data(), prints.images)
        rows = write_scores(study, jobs) if upto == Upto.EVALUATE else []
    return Outcome(len(session.ran), len(session.skipped), session.adopted, rows)


def check_batches(study: Study) -> None:
    """Raise a RecipeError if a batch is larger than the data, before a folder is created."""
    for table in (study.recipe.teachers, study.recipe.student):
        if isinstance(table, Schedule):
            study.training_plan(table)


@dataclass
class Session:
    """Runs jobs in one folder, and records which jobs ran and which had a result already."""

    folder: Path
    runner: Runner
    board: Board
    ran: set[str] = field(default_factory=set)  # names of jobs
    skipped: set[str] = field(default_factory=set)
    adopted: int = 0  # how many of the skipped jobs were linked from other runs

    def run(self, jobs: Sequence[Job], begin: Callable[[], None]) -> None:
        """Run the jobs that have no result yet; `begin` is called first, if there are any."""
        missing = not_done(jobs)
        if missing:
            begin()
        linked = link_results(missing, self.folder.parent)
        graph = Graph([job for job in missing if job.name not in linked])
        self.adopted += len(linked)
        try:
            self.runner.run(graph, self.board)
        finally:
            self.ran |= graph.ran
            done_before = {job.name for job in jobs} - {job.name for job in missing}
            self.skipped |= (done_before | linked) - self.ran


def job_states(jobs: Sequence[Job], runs: Path) -> dict[str, str]:
    """The state of each job by name, as text: what `run_study` would find and do.

    `runs` is the folder of all runs, whose results can be linked.
    """
    results = results_in(runs)
    return {job.name: job_state(job, results.get(job.key, [])) for job in jobs}


def job_state(job: Job, others: Sequence[Path]) -> str:
    """The state of one job; `others` are the folders of other runs with its result."""
    if job.is_done():
        return "done"
    if isinstance(job.result, Stage) and (setting := job.result.difference()):
        return f"made with another {setting}"
    if others:
        return f"linked from {run_of(others[0])}"
    return "started" if isinstance(job.result, Stage) and job.result.record() else "to do"


def link_results(jobs: Sequence[Job], runs: Path) -> set[str]:
    """Link trainings that other runs in the folder `runs` have; returns the names of their jobs.

    A student is linked only if it learned from teachers with the same weights as this run's.
    """
    results = results_in(runs) if jobs else {}
    waiting, linked = {job.name for job in jobs}, set()
    for job in jobs:
        if not isinstance(job.work, TrainingJob) or not waiting.isdisjoint(job.needs):
            continue
        stage, hashes, folders = job.result, job.work.teacher_hashes(), results.get(job.key, [])
        if isinstance(stage, Stage) and any(stage.take_over(folder, hashes) for folder in folders):
            waiting.remove(job.name)
            linked.add(job.name)
    return linked
