"""Tables that only the paper has whole, ours beside where a run has the same: its grid of α and τ, EnD²."""

from __future__ import annotations

from polyphony.report import paper
from polyphony.report.paper import BATCH_ENSEMBLE, PaperRow, Tuning
from polyphony.report.run import Run, mean_of
from polyphony.report.score_tables import paper_row
from polyphony.report.tables import Cell, PageTable
from polyphony.rows import Score
from polyphony.scores import HEADINGS, mean_text

_ENDD = ("acc", "nll", "bs", "ece")
_NAMES = {"endd": "EnD²", "confods": "KD + ConfODS into BatchEnsemble"}


def paper_tables(run: Run) -> list[PageTable]:
    """The paper's further tables on a run's experiment; none for a recipe that is not the paper's."""
    names = run.paper.names if run.paper else ()
    tuned = [cell for cell in paper.tuning() if cell.experiment in names]
    against_endd = any(name.startswith("cifar10-resnet32") for name in names)
    return [*([tuning_table(run, tuned)] if tuned else []), *([endd_table(run)] if against_endd else [])]


def tuning_table(run: Run, cells: list[Tuning]) -> PageTable:
    """Validation scores of plain distillation for every α and τ that the paper tried."""
    caption = (
        "Plain distillation on validation images, for every α and τ that the paper tried: ACC, and NLL at the"
        " temperature fitted there. The small numbers are the paper's; ours stand where this run has them."
    )
    header = ["Setting", HEADINGS["acc"], HEADINGS["nll"], "n, paper"]
    return PageTable.of("paper-tuning", caption, header, [_tuning_row(run, cell) for cell in cells])


def _tuning_row(run: Run, cell: Tuning) -> list[Cell | str]:
    settings = {name: run.recipe.distillation(name) for name in _same(run, BATCH_ENSEMBLE, "clean")}
    at = (cell.alpha, cell.temperature)
    ours = [name for name, each in settings.items() if each and (each.alpha, each.temperature) == at]
    scores = run.scored(ours[0], "valid") if ours else []
    both = [Cell(_ours(scores, column), paper=getattr(cell, column)) for column in ("acc", "nll")]
    return [f"α = {cell.alpha:g}, τ = {cell.temperature:g}", *both, str(cell.n)]


def endd_table(run: Run) -> PageTable:
    """The paper's comparison with EnD², for every number of teachers."""
    caption = (
        "Ensemble distribution distillation (EnD²) against this method, by the number of teachers: test"
        " scores at the temperature fitted on validation (the paper's BS are as predicted). The"
        " small numbers are the paper's, each of one training; ours stand where this run has them."
    )
    header = ["Teachers, student", *(HEADINGS[column] for column in _ENDD)]
    rows = [_endd_row(run, row) for row in paper.rows() if row.table == "endd"]
    return PageTable.of("paper-endd", caption, header, rows)


def _endd_row(run: Run, row: PaperRow) -> list[Cell | str]:
    teachers = paper.EXPERIMENTS[row.experiment].members
    wanted = ("dirichlet", "clean") if row.method == "endd" else (BATCH_ENSEMBLE, row.method)
    same = [name for name in _same(run, *wanted) if paper_row(run, name, row.calibration)]
    scores = run.scored(same[0]) if same and run.members == teachers else []
    cells = [Cell(_ours(scores, column), paper=getattr(row, column)) for column in _ENDD]
    return [f"{teachers}, {_NAMES[row.method]}", *cells]


def _same(run: Run, form: str, perturbation: str) -> list[str]:
    """The methods of a form and a perturbation."""
    return [name for name in run.methods_with(perturbation) if run.recipe.form_table(name).label == form]


def _ours(scores: list[Score], column: str) -> str:
    return mean_text(column, mean_of(scores, column)) if scores else "–"
