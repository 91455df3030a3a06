"""Analyses of a run: which jobs each needs, when it is impossible, and the table it writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.nn import factors
from polyphony.runs.rows import FactorDistance, GradientSnr, JacobianCosine, TableRow
from polyphony.runs.stage import locked
from polyphony.runs.store import StoreError
from polyphony.study.analysis_jobs import (
    NOISES,
    SNR_STEPS,
    factors_job,
    jacobians_job,
    members_job,
    snr_job,
    transfer_job,
)
from polyphony.study.evaluation import weight_hashes, weights_of
from polyphony.study.saved import SavedRows, SavedTensors, write_table
from polyphony.study.study import Study

EXAMPLES = 500  # images of a split whose Jacobians are compared


@dataclass(frozen=True)
class Analysis:
    """An analysis of a run's models. `jobs` makes its jobs from a study, methods and a number of images.

    `table` holds the rows of all jobs; without a table, each job's file is the result. `obstacle` says why a
    run cannot have it, if so. `methods` are those whose students can be analysed, and `lacking` says what the
    others lack. A study ends with the analyses that are `short`: they take seconds.
    """

    jobs: Callable[[Study, Sequence[str], int], list[Job]]
    table: type[TableRow] | None = None
    obstacle: Callable[[Study], str | None] = lambda study: None
    methods: Callable[[Study], list[str]] = lambda study: list(study.recipe.methods)
    lacking: str = ""
    short: bool = False

    def files(self, study: Study, jobs: Sequence[Job]) -> list[Path]:
        if self.table is None:
            return [job.result.path for job in jobs if isinstance(job.result, SavedTensors)]
        return [write_table(study.folder, self.table, [row for job in jobs for row in saved_rows(job)])]


def saved_rows(job: Job) -> list[TableRow]:
    assert isinstance(job.result, SavedRows), job.name
    rows = job.result.load()
    if rows is None:
        raise StoreError(f"{job.result.path} has gone")
    return list(rows)


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have a member for each teacher that depends on its own input alone."""
    forms = {name: study.recipe.form(name) for name in study.recipe.methods}
    alone = [name for name, form in forms.items() if form.one_to_one and not form.mixes_members]
    return [name for name in alone if study.members(name) == study.recipe.members]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    several = [name for name in study.recipe.methods if study.members(name) > 1]
    return [name for name in several if any(True for _ in factors(study.blank_student(name)))]


def plain_student(study: Study) -> tuple[str, int]:
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
        lambda study, methods, n: [jacobians_job(study, *of, n) for of in study.students if of[0] in methods],
        JacobianCosine,
        methods=one_to_one,
        lacking="it does not have one independent member for each teacher",
    ),
    "snr": Analysis(
        lambda study, *_: [
            snr_job(study, noise, scale, plain_student(study)) for noise in NOISES for scale in SNR_STEPS
        ],
        GradientSnr,
        methods=one_to_one,
    ),
    "factors": Analysis(
        lambda study, methods, _: [factors_job(study, methods)],
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
    jobs: dict[str, list[Job]] = {}
    with locked(study.folder):
        weight_hashes(study)  # raises if something is not trained
        for name, each in ANALYSES.items():
            if name in what and name not in left_out:
                methods = each.methods(study)
                left_out |= unfit(study, name, methods)
                jobs |= {name: each.jobs(study, methods, examples)} if methods else {}
        chosen = [(ANALYSES[name], each) for name, each in jobs.items()]
        graph = Graph(not_done(job for _, each in chosen for job in each))
        runner.run(graph, board)
        files = [path for which, each in chosen for path in which.files(study, each)]
    return Analysed(len(graph.ran), files, left_out)


def unfit(study: Study, name: str, methods: Sequence[str]) -> dict[str, str]:
    """The methods that an analysis leaves out, and why."""
    if not methods:
        return {name: "no student has the members that it needs"}
    others = [method for method in study.recipe.methods if method not in methods]
    lacking = ANALYSES[name].lacking
    return {f"{name} of {method}": lacking for method in others if lacking}
