"""Analyse a run: which jobs an analysis needs, what stands in its way, and the table it ends in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyphony.rows import FactorDistance, GradientSnr, JacobianCosine, Latency, TableRow
from polyphony.store import StoreError, locked
from polyphony.study.analysis_jobs import (
    EXAMPLES,
    NOISES,
    SNR_STEPS,
    AnalysisJob,
    MatchJacobians,
    MeasureFactors,
    MeasureLatency,
    MeasureSnr,
    ShowMembers,
    Transfer,
)
from polyphony.study.evaluation import stage_hash, weight_hashes
from polyphony.study.runner import Board, Graph, Runner
from polyphony.study.saved import write_table
from polyphony.study.study import Study
from polyphony.study.subjects import one_to_one, plain_student, with_factors


@dataclass(frozen=True)
class TableAnalysis:
    """An analysis whose jobs make the rows of a table.

    `alone`: nothing else may run meanwhile. `methods`: those whose students it can be made of, and `lacking`:
    what the others lack.
    """

    kind: type[TableRow]
    jobs: Callable[[Study, Sequence[str], int], Sequence[AnalysisJob]]
    alone: bool = False
    methods: Callable[[Study], list[str]] = lambda study: list(study.recipe.methods)
    lacking: str = ""


def jacobian_jobs(study: Study, methods: Sequence[str], examples: int) -> list[MatchJacobians]:
    """Every student of these methods."""
    return [MatchJacobians(study, m, s, examples) for m, s in study.students if m in methods]


def snr_jobs(study: Study, methods: Sequence[str], examples: int) -> list[MeasureSnr]:
    """One student, every noise and step."""
    student = plain_student(study)
    return [MeasureSnr(study, kind, scale, student) for kind in NOISES for scale in SNR_STEPS]


_NO_MEMBERS = "it has no member for each teacher that depends on its own input alone"
TABLES = {
    "jacobians": TableAnalysis(
        JacobianCosine,
        jacobian_jobs,
        methods=one_to_one,
        lacking=_NO_MEMBERS,
    ),
    "snr": TableAnalysis(GradientSnr, snr_jobs, methods=one_to_one),
    "factors": TableAnalysis(
        FactorDistance,
        lambda study, methods, _: [MeasureFactors(study, tuple(methods))],
        methods=with_factors,
        lacking="its members do not differ by rank-one factors",
    ),
    "latency": TableAnalysis(Latency, lambda study, *_: [MeasureLatency(study)], alone=True),
}
SINGLE: dict[str, Callable[[Study], AnalysisJob]] = {"transfer": Transfer, "members": ShowMembers}
ANALYSES = (*TABLES, *SINGLE)


@dataclass(frozen=True)
class Analysed:
    """What an analysis did: how many jobs ran, which files there are now, what was left out and why."""

    ran: int
    files: list[Path]
    left_out: dict[str, str]


def analyse(
    study: Study, what: Sequence[str], runner: Runner, board: Board, examples: int = EXAMPLES
) -> Analysed:
    """Do the analyses named, of `ANALYSES`; what is done and unchanged is not done again."""
    left_out = {name: reason for name in what if (reason := obstacle(study, name))}
    chosen = [name for name in ANALYSES if name in what and name not in left_out]
    with locked(study.folder):
        weight_hashes(study)  # says what is not trained, before anything starts
        fitting = {name: TABLES[name].methods(study) for name in chosen if name in TABLES}
        left_out |= {
            what: why for name, methods in fitting.items() for what, why in unfit(study, name, methods)
        }
        tabled = {name: TABLES[name].jobs(study, fit, examples) for name, fit in fitting.items() if fit}
        single = {name: SINGLE[name](study) for name in chosen if name in SINGLE}
        together = [job for name, jobs in tabled.items() if not TABLES[name].alone for job in jobs]
        alone = [job for name, jobs in tabled.items() if TABLES[name].alone for job in jobs]
        graphs = Graph([*together, *single.values()]), Graph(alone)
        for graph in graphs:
            runner.run(graph, board)
        files = [write_rows(study, name, jobs) for name, jobs in tabled.items()]
    ran = sum(len(graph.ran) for graph in graphs)
    return Analysed(ran, [*files, *(job.saved.path for job in single.values())], left_out)


def obstacle(study: Study, name: str) -> str | None:
    """Why an analysis cannot be made of a run, or nothing."""
    members = study.recipe.members
    if name == "transfer":
        if study.recipe.teachers.extra == 0:
            return "the recipe has no extra teacher (teachers.extra) to take directions from"
        stage_hash(study.teacher_stage(members))
    if name == "factors" and members == 1:
        return "the student has one member, which is at no distance from itself"
    return None


def unfit(study: Study, name: str, methods: Sequence[str]) -> list[tuple[str, str]]:
    """Of which methods an analysis cannot be made, and why; of none at all, if none has what it needs."""
    if not methods:
        return [(name, "no student has members that it could be made of")]
    others = [method for method in study.recipe.methods if method not in methods]
    return [(f"{name} of {method}", TABLES[name].lacking) for method in others if TABLES[name].lacking]


def write_rows(study: Study, name: str, jobs: Sequence[AnalysisJob]) -> Path:
    """The table of all rows that jobs have saved."""
    rows = []
    for job in jobs:
        part = job.saved.load()
        if part is None:
            raise StoreError(f"{job.saved.path} has gone")
        rows += part
    return write_table(study.folder, TABLES[name].kind, rows)
