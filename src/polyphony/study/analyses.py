"""Analyse a run: which jobs an analysis needs, what stands in its way, and the table it ends in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyphony.execute.board import Board
from polyphony.execute.job import Graph, Job, not_done
from polyphony.execute.runner import Runner
from polyphony.nn import factors
from polyphony.runs.rows import FactorDistance, GradientSnr, JacobianCosine, TableRow
from polyphony.runs.store import StoreError, locked
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
    """What is asked of a run's models: its jobs, from a study, the methods that fit and a number of images.

    `table` is what the rows of all jobs make; without one, each job's file is the result. `obstacle` says why
    it cannot be made of a run, if so. `methods` are those whose students it can be made of, and `lacking` is
    what the others lack. `short`: it takes seconds, so that a study ends with it.
    """

    jobs: Callable[[Study, Sequence[str], int], list[Job]]
    table: type[TableRow] | None = None
    obstacle: Callable[[Study], str | None] = lambda study: None
    methods: Callable[[Study], list[str]] = lambda study: list(study.recipe.methods)
    lacking: str = ""
    short: bool = False

    def files(self, study: Study, jobs: Sequence[Job]) -> list[Path]:
        """What it ends in, when its jobs are done."""
        if self.table is None:
            return [job.result.path for job in jobs if isinstance(job.result, SavedTensors)]
        return [write_table(study.folder, self.table, [row for job in jobs for row in saved_rows(job)])]


def saved_rows(job: Job) -> list[TableRow]:
    """What a job has saved."""
    assert isinstance(job.result, SavedRows), job.name
    rows = job.result.load()
    if rows is None:
        raise StoreError(f"{job.result.path} has gone")
    return list(rows)


def one_to_one(study: Study) -> list[str]:
    """The methods whose students have a member for each teacher that depends on its own input alone."""
    recipe = study.recipe
    return [
        name
        for name in recipe.methods
        if study.members(name) == recipe.members and not recipe.form(name).mixes_members
    ]


def with_factors(study: Study) -> list[str]:
    """The methods whose students' members differ by rank-one factors."""
    several = [name for name in study.recipe.methods if study.members(name) > 1]
    return [name for name in several if any(True for _ in factors(study.blank_student(name)))]


def jacobian_jobs(study: Study, methods: Sequence[str], examples: int) -> list[Job]:
    """Every student of these methods."""
    return [jacobians_job(study, name, seed, examples) for name, seed in study.students if name in methods]


def plain_student(study: Study) -> tuple[str, int]:
    """Whose gradients are looked at: of `one_to_one` that of plain distillation, else the first distilled."""
    methods = {name: study.recipe.methods[name] for name in one_to_one(study)}
    distilled = [name for name, method in methods.items() if method.perturb] or list(methods)
    return min(distilled, key=lambda name: methods[name].perturbs), study.recipe.seeds[0]


def snr_jobs(study: Study, methods: Sequence[str], examples: int) -> list[Job]:
    """One student, every noise and step."""
    student = plain_student(study)
    return [snr_job(study, noise, scale, student) for noise in NOISES for scale in SNR_STEPS]


def lacks_a_source(study: Study) -> str | None:
    """Why there are no directions of another teacher; raises where that one is not trained."""
    if study.recipe.teachers.extra == 0:
        return "the recipe has no extra teacher (teachers.extra) to take directions from"
    weights_of(study.teacher(study.recipe.members))
    return None


def has_one_member(study: Study) -> str | None:
    """Why members are at no distance from each other."""
    one = study.recipe.members == 1
    return "the student has one member, which is at no distance from itself" if one else None


ANALYSES = {
    "jacobians": Analysis(
        jacobian_jobs,
        JacobianCosine,
        methods=one_to_one,
        lacking="it has no member for each teacher that depends on its own input alone",
    ),
    "snr": Analysis(snr_jobs, GradientSnr, methods=one_to_one),
    "factors": Analysis(
        lambda study, methods, _: [factors_job(study, methods)],
        FactorDistance,
        has_one_member,
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
    """What an analysis did: how many jobs ran, which files there are now, what was left out and why."""

    ran: int
    files: list[Path]
    left_out: dict[str, str]


def analyse(
    study: Study, what: Collection[str], runner: Runner, board: Board, examples: int = EXAMPLES
) -> Analysed:
    """Do the analyses named, of `ANALYSES`; what is done and unchanged is not done again."""
    left_out = {name: reason for name in what if (reason := ANALYSES[name].obstacle(study))}
    jobs: dict[str, list[Job]] = {}
    with locked(study.folder):
        weight_hashes(study)  # says what is not trained, before anything starts
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
    """Of which methods an analysis cannot be made, and why; of none at all, if none has what it needs."""
    if not methods:
        return {name: "no student has members that it could be made of"}
    others = [method for method in study.recipe.methods if method not in methods]
    lacking = ANALYSES[name].lacking
    return {f"{name} of {method}": lacking for method in others if lacking}
