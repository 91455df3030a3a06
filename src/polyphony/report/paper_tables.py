"""Tables that only the paper has whole, ours beside where a run has the same: its grid of α and τ, EnD²."""

from __future__ import annotations

from polyphony import metrics
from polyphony.report import paper
from polyphony.report.paper import BATCH_ENSEMBLE, Comparison, PaperRow, Tuning
from polyphony.report.run import Run
from polyphony.report.summary import paper_row
from polyphony.report.tables import Cell, Table
from polyphony.rows import Score
from polyphony.scores import HEADINGS, mean_text

_ENDD = ("acc", "nll", "bs", "ece")
_NAMES = {"endd": "EnD²", "confods": "KD + ConfODS into BatchEnsemble"}


def paper_tables(run: Run) -> list[Table]:
    """The paper's further tables on a run's experiment; none for a recipe that is not the paper's."""
    return [*tuning_tables(run, run.paper), *endd_tables(run, run.paper)] if run.paper else []


def tuning_tables(run: Run, found: Comparison) -> list[Table]:
    """Validation scores of plain distillation for every α and τ that the paper tried."""
    cells = [cell for cell in paper.tuning() if cell.experiment in found.experiments]
    if not cells:
        return []
    caption = (
        "Plain distillation on validation images, for every α and τ that the paper tried: ACC, and NLL at the"
        " temperature fitted there. The small numbers are the paper's; ours stand where this run has them."
    )
    rows = tuple(_tuning_row(run, cell) for cell in cells)
    return [Table("paper-tuning", caption, ("Setting", HEADINGS["acc"], HEADINGS["nll"], "n, paper"), rows)]


def _tuning_row(run: Run, cell: Tuning) -> tuple[Cell, ...]:
    plain = {name: run.recipe.distillation(name) for name in run.methods if _is_plain(run, name)}
    at = (cell.alpha, cell.temperature)
    ours = [name for name, method in plain.items() if method and (method.alpha, method.temperature) == at]
    scores = run.scored(ours[0], "valid") if ours else []
    label = f"α = {cell.alpha:g}, τ = {cell.temperature:g}"
    return (
        Cell(label),
        Cell(_ours(scores, "acc"), paper=cell.text("acc")),
        Cell(_ours(scores, "nll"), paper=cell.text("nll")),
        Cell(str(cell.n)),
    )


def _is_plain(run: Run, method: str) -> bool:
    return run.perturbation(method) == "clean" and run.recipe.form_table(method).label == BATCH_ENSEMBLE


def endd_tables(run: Run, found: Comparison) -> list[Table]:
    """The paper's comparison with EnD², for every number of teachers, where the run is of that network."""
    if not any(name.startswith("cifar10-resnet32") for name in found.experiments):
        return []
    caption = (
        "Ensemble distribution distillation (EnD²) against this method, by the number of teachers: test"
        " scores at the temperature fitted on validation (the paper's BS are as predicted). The"
        " small numbers are the paper's, each of one training; ours stand where this run has them."
    )
    printed = [row for row in paper.rows() if row.table == "endd"]
    rows = tuple(_endd_row(run, row) for row in printed)
    return [
        Table("paper-endd", caption, ("Teachers, student", *(HEADINGS[column] for column in _ENDD)), rows)
    ]


def _endd_row(run: Run, row: PaperRow) -> tuple[Cell, ...]:
    teachers = paper.EXPERIMENTS[row.experiment].members
    form, perturb = ("dirichlet", "clean") if row.method == "endd" else (BATCH_ENSEMBLE, row.method)
    same = [
        m for m in run.methods if (run.recipe.form_table(m).label, run.perturbation(m)) == (form, perturb)
    ]
    same = [m for m in same if paper_row(run, m, row.calibration)]
    scores = run.scored(same[0]) if same and run.members == teachers else []
    cells = (Cell(_ours(scores, column), paper=row.text(column)) for column in _ENDD)
    return (Cell(f"{teachers}, {_NAMES[row.method]}"), *cells)


def _ours(scores: list[Score], column: str) -> str:
    if not scores:
        return "–"
    return mean_text(column, metrics.mean_sd([getattr(score, column) for score in scores]))
