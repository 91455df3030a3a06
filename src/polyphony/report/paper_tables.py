"""The paper's numbers beside a run's: the row of one model, and two more tables of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from polyphony.report.paper import (
    BATCH_ENSEMBLE,
    EXPERIMENTS,
    PaperRow,
    Tuning,
    experiments_of,
    paper_rows,
    tuning,
)
from polyphony.report.tables import DASH, Cell, PageTable
from polyphony.runs.rows import Score
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, HEADINGS, TEACHERS, mean_of, mean_text

_NAMES = {"endd": "EnD²", "confods": "KD + ConfODS into BatchEnsemble"}


def paper_row(run: Run, model: str, calibration: str, table: str | None = None) -> PaperRow | None:
    """The paper's row of a model; None if it has none, or if a method changes the student's settings."""
    paper, recipe = experiments_of(run.recipe), run.recipe
    if paper is None or model == BEST_TEACHER:
        return None
    if model == TEACHERS:
        return paper.row(model, calibration, table)
    form, method = recipe.form_table(model), run.perturbation(model) or "scratch"
    if form.label == "dirichlet":  # the paper does not state its settings
        return paper.row("endd", calibration, table, form.label) if method == "clean" else None
    own = recipe.methods[model].model_dump(exclude_none=True, exclude={"perturb", "form"})
    changed = any(value != getattr(recipe.student, key, None) for key, value in own.items())
    if changed or getattr(form, "member_norm", False):
        return None
    return paper.row(method, calibration, table, form.label)


def paper_tables(run: Run) -> list[PageTable]:
    """The paper's grid of α and τ and its comparison with EnD², if they belong to the run's experiment."""
    paper = experiments_of(run.recipe)
    names = paper.names if paper else ()
    cells = [cell for cell in tuning() if cell.experiment in names]
    has_endd = any(name.startswith("cifar10-resnet32") for name in names)
    return [*([_tuning_table(run, cells)] if cells else []), *([_endd_table(run)] if has_endd else [])]


def _tuning_table(run: Run, cells: list[Tuning]) -> PageTable:
    caption = (
        "Plain distillation on validation images, for every α and τ that the paper tried: ACC, and NLL at the"
        " temperature fitted on these images. The small numbers are the paper's. A dash: this run has no such"
        " student."
    )
    return PageTable.from_rows("paper-tuning", caption, [_tuning_row(run, cell) for cell in cells])


def _tuning_row(run: Run, cell: Tuning) -> dict[str, Cell | str]:
    settings = {name: run.recipe.distillation(name) for name in _methods_of(run, BATCH_ENSEMBLE, "clean")}
    wanted = (cell.alpha, cell.temperature)
    same = [name for name, own in settings.items() if own and (own.alpha, own.temperature) == wanted]
    scores = run.scored(same[0], "valid") if same else []
    words = f"α = {cell.alpha:g}, τ = {cell.temperature:g}"
    return {"Setting": words, **_beside(scores, cell, ("acc", "nll")), "n, paper": str(cell.n)}


def _endd_table(run: Run) -> PageTable:
    caption = (
        "Ensemble distribution distillation (EnD²) against this method, by the number of teachers: test"
        " scores at the temperature fitted on validation images (the paper's BS are as predicted). The small"
        " numbers are the paper's, each from one training. A dash: this run has no such student."
    )
    rows = [_endd_row(run, row) for row in paper_rows() if row.table == "endd"]
    return PageTable.from_rows("paper-endd", caption, rows)


def _endd_row(run: Run, row: PaperRow) -> dict[str, Cell | str]:
    teachers = EXPERIMENTS[row.experiment].recipe.members
    form, perturbation = ("dirichlet", "clean") if row.method == "endd" else (BATCH_ENSEMBLE, row.method)
    methods = _methods_of(run, form, perturbation)
    same = [name for name in methods if paper_row(run, name, row.calibration)]
    scores = run.scored(same[0]) if same and run.members == teachers else []
    student = f"{teachers}, {_NAMES[row.method]}"
    return {"Teachers, student": student, **_beside(scores, row, ("acc", "nll", "bs", "ece"))}


def _methods_of(run: Run, form: str, perturbation: str) -> list[str]:
    """The methods with this form and this perturbation."""
    return [name for name in run.methods_with(perturbation) if run.recipe.form_table(name).label == form]


def _beside(scores: list[Score], paper: PaperRow | Tuning, columns: Sequence[str]) -> dict[str, Cell | str]:
    """Our scores with the paper's beside them, by heading."""
    ours = {column: mean_text(column, mean_of(scores, column)) if scores else DASH for column in columns}
    return {HEADINGS[column]: Cell(ours[column], paper=getattr(paper, column)) for column in columns}
