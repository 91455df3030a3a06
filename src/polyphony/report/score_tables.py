"""Tables of a run's scores, seeds averaged: on test images, unknown and corrupted ones; and the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from polyphony import metrics
from polyphony._util.text import count, counted, duration
from polyphony.report.paper import (
    BATCH_ENSEMBLE,
    EXPERIMENTS,
    PaperRow,
    Tuning,
    paper_rows,
    printed,
    tuning,
)
from polyphony.report.run import Run
from polyphony.report.tables import Cell, PageTable, slug
from polyphony.report.verdict import median_dee
from polyphony.runs.predictions import CORRUPTED
from polyphony.runs.rows import CorruptedScore, Latency, Score, UnknownScore, headings
from polyphony.runs.scores import (
    HEADINGS,
    TEACHERS,
    BySeed,
    by_shared_seeds,
    differ,
    mean_of,
    mean_text,
    score_text,
)
from polyphony.runs.store import damaged

_LARGER_IS_BETTER = {name: "↑" in text for name, text in HEADINGS.items() if "↑" in text or "↓" in text}
_HOW = {
    "calibrated": "at the temperature fitted on validation",
    "standard": "as predicted, without temperature scaling",
}
_SCORES = ("acc", "nll", "ece")
_DASH = "–"
_UNKNOWN = {
    ("entropy", "auroc"): "AUROC, entropy ↑",
    ("mutual_information", "auroc"): "AUROC, mutual inf. ↑",
    ("doubt", "auroc"): "AUROC, confidence ↑",
    ("entropy", "aupr"): "AUPR, entropy ↑",
    ("entropy", "fpr95"): "FPR95, entropy ↓",
}
_ENDD = ("acc", "nll", "bs", "ece")
_NAMES = {"endd": "EnD²", "confods": "KD + ConfODS into BatchEnsemble"}
_CORRUPTED = headings(CorruptedScore)
_PAPERS_IMAGES = 10_000  # of every kind and severity of CIFAR-10-C and CIFAR-100-C


def score_table(run: Run, calibration: str) -> PageTable:
    """Mean ± s.d. over seeds on test of the teachers and every student, the paper's numbers beside them."""
    n = " or ".join(map(str, sorted({len(run.scored(method)) for method in run.methods})))
    seeds = f"n = {n} {'seed' if n == '1' else 'seeds'} of the student"
    caption = f"{run.recipe.name}: test scores, {_HOW[calibration]}; mean ± s.d. over {seeds}."
    winners = {}
    for column, larger in _LARGER_IS_BETTER.items():
        values = {method: run.by_seed(method, column, calibration) for method in run.methods}
        winners[column] = clear_winner(values, larger=larger)
    rows = [_score_row(run, model, calibration, winners) for model in run.models]
    header = ["Model", "Parameters", *HEADINGS.values()]
    return PageTable.of(f"scores-{calibration}", caption, header, rows)


def _score_row(run: Run, model: str, calibration: str, winners: Mapping[str, str | None]) -> list[Cell | str]:
    theirs = paper_row(run, model, calibration)
    label = f"teachers ({counted(run.members, 'network')})" if model == TEACHERS else model
    row: list[Cell | str] = [label, f"{run.params(model):,}"]
    for column in HEADINGS:
        best, paper = winners.get(column) == model, printed(theirs, column)
        row.append(Cell(run.text(model, column, calibration), best, paper))
    return row


def paper_row(run: Run, model: str, calibration: str, table: str | None = None) -> PaperRow | None:
    """The paper's row of a model, if it has one: none where a method changes the student's settings."""
    paper, recipe = run.paper, run.recipe
    if paper is None:
        return None
    if model == TEACHERS:
        return paper.row(model, calibration, table)
    form, method = recipe.form_table(model), run.perturbation(model) or "scratch"
    if form.label == "dirichlet":  # whose settings the paper does not state
        return paper.row("endd", calibration, table, form.label) if method == "clean" else None
    own = recipe.methods[model].model_dump(exclude_none=True, exclude={"perturb", "form"})
    changed = any(value != getattr(recipe.student, key, None) for key, value in own.items())
    if changed or getattr(form, "member_norm", False):
        return None
    return paper.row(method, calibration, table, form.label)


def clear_winner(values: Mapping[str, BySeed], *, larger: bool) -> str | None:
    """Who is ahead of every other: the 95 % interval of each difference, paired by seed, leaves out zero.

    None where there is no other, or where one has no spread (one seed, or an infinite value).
    """
    if len(values) < 2 or not all(values.values()):
        return None
    values = by_shared_seeds(values)
    means = {name: fmean(each.values()) for name, each in values.items()}
    best = (max if larger else min)(means, key=lambda name: means[name])
    return best if all(differ(values[best], values[other]) for other in values if other != best) else None


def student_table(run: Run) -> PageTable:
    """Means over seeds on test; costs of training, and of a batch where latency was measured."""
    rows = run.table(Latency)
    batch = f", latency of a batch of {rows[0].batch} on {rows[0].threads} thread(s)" if rows else ""
    caption = (
        "Side by side: means over seeds on test images (calibrated; DEE of the median seed), how often and"
        " how much members differ; whether they do on the images on which the teachers do (Where, a rank"
        " correlation), and how much nearer member j is to teacher j than to the others (Voice, nats); the"
        " time of one training without its teachers', also in times of what all teachers of the ensemble"
        f" took{batch}. A dash is what a model does not have or was not measured."
    )
    body = [_student_row(run, model) for model in run.models]
    return PageTable.of("students", caption, list(body[0]), [cells.values() for cells in body])


def _student_row(run: Run, model: str) -> dict[str, str]:
    """A model's cells by heading."""
    table = None if model == TEACHERS else run.recipe.form_table(model)
    what = {
        "Model": model,
        "Form": table.words or table.label if table else "deep ensemble",
        "Members": str(run.members_of(model)),
        "Parameters": count(run.params(model)),
    }
    times = {row.model: f"{row.milliseconds:.3g}" for row in run.table(Latency)}
    latency = {"Latency, ms": times.get(model, _DASH)} if times else {}
    return {**what, **_quality(run, model), **_diversity(run, model), **_training(run, model), **latency}


def _quality(run: Run, model: str) -> dict[str, str]:
    values = {column: run.mean(model, column).mean for column in _SCORES}
    shown = {**values, "dee": median_dee(run, model)}
    return {HEADINGS[column]: score_text(column, [each], run.teacher_count) for column, each in shown.items()}


def _diversity(run: Run, model: str) -> dict[str, str]:
    """Dashes for one network, unless it predicts a distribution of predictions, as a Dirichlet does."""
    tested = run.ensemble(model, "test").values()
    several, kld = run.members_of(model) > 1, run.mean(model, "kld").mean
    return {
        HEADINGS["kld"]: f"{kld:.3f}" if several or kld > 0 else _DASH,
        "Disagree": _mean([metrics.disagreement(each.logits) for each in tested if several], ".1%"),
        "Mutual inf.": _mean([float(each.information().mean()) for each in tested if each.varies], ".3f"),
        "Where": _mean([row.rank_correlation for row in run.scored(model)], ".2f"),
        "Voice": _mean([row.voice for row in run.scored(model)], "+.3f"),
    }


def _mean(values: Sequence[float | None], style: str) -> str:
    """The mean of the values that are there."""
    known = [value for value in values if value is not None]
    return format(fmean(known), style) if known else _DASH


def _training(run: Run, model: str) -> dict[str, str]:
    taught, mine = run.seconds(TEACHERS)[: run.members], run.seconds(model)
    if not mine:
        return {"Training": _DASH, "× teachers": _DASH}
    seconds = sum(taught) if model == TEACHERS else fmean(mine)
    return {"Training": duration(seconds), "× teachers": f"{seconds / sum(taught):.2f}" if taught else _DASH}


def unknown_tables(run: Run) -> list[PageTable]:
    """For each set of unknown classes, how well each model tells it from test images, by entropy."""
    names = dict.fromkeys(row.unknown for row in run.table(UnknownScore))
    return [_unknown(run, name) for name in names]


def _unknown(run: Run, name: str) -> PageTable:
    rows = [row for row in run.table(UnknownScore) if row.unknown == name]
    body = []
    for model in run.models:
        if mine := [row for row in rows if row.model == model]:
            body.append([model, *(_told_apart(mine, by, column) for by, column in _UNKNOWN)])
    caption = (
        f"Telling {name} (unknown: the positive class) from test images by an uncertainty: the entropy of the"
        " mean, the members' mutual information, or low confidence; mean ± s.d. over seeds."
    )
    return PageTable.of(f"unknown-{slug(name)}", caption, ["Model", *_UNKNOWN.values()], body)


def _told_apart(rows: Sequence[UnknownScore], by: str, column: str) -> str:
    values = [getattr(row, column) for row in rows if row.score == by]
    return mean_text(column, metrics.mean_sd(values)) if values else _DASH


def corrupted_tables(run: Run) -> list[PageTable]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    names = dict.fromkeys(row.data for row in run.table(CorruptedScore))
    return [_corrupted(run, name) for name in names]


def _corrupted(run: Run, name: str) -> PageTable:
    rows = [row for row in run.table(CorruptedScore) if row.data == name]
    official = _is_official(run, name, _conditions(run, rows))
    body: list[list[Cell | str]] = []
    for model in run.models:
        theirs = paper_row(run, model, "standard", "corrupted") if official else None
        if mine := [row for row in rows if row.model == model]:
            cells = [Cell(_over_all(mine, c), paper=printed(theirs, c)) for c in _CORRUPTED]
            body.append([model, *cells])
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return PageTable.of(f"corrupted-{slug(name)}", caption, ["Model", *_CORRUPTED.values()], body)


def _conditions(run: Run, rows: Sequence[CorruptedScore]) -> set[tuple[str, int]]:
    """The corruptions and severities: means compare only if every model and seed has a score for each."""
    found = {(row.corruption, row.severity) for row in rows}
    for (model, _), scored in Counter((row.model, row.seed) for row in rows).items():
        if scored != len(found):
            why = f"it has {scored} scores of a seed of {model}, not {len(found)}"
            raise damaged(run.folder / CorruptedScore.file, why)
    return found


def _is_official(run: Run, name: str, conditions: Iterable[tuple[str, int]]) -> bool:
    """Whether all the published images were predicted, as in the paper: not made here, nor only the first."""
    splits = (f"{CORRUPTED}{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)


def _over_all(rows: Sequence[CorruptedScore], column: str) -> str:
    """A model's score over its seeds, each a mean over corruptions and severities."""
    seeds: dict[int | None, list[float]] = {}
    for row in rows:
        seeds.setdefault(row.seed, []).append(getattr(row, column))
    return mean_text(column, metrics.mean_sd([fmean(each) for each in seeds.values()]))


def paper_tables(run: Run) -> list[PageTable]:
    """The paper's further tables on a run's experiment; none for a recipe that is not the paper's."""
    names = run.paper.names if run.paper else ()
    tuned = [cell for cell in tuning() if cell.experiment in names]
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
    settings = {name: run.recipe.distillation(name) for name in _methods_of(run, BATCH_ENSEMBLE, "clean")}
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
    rows = [_endd_row(run, row) for row in paper_rows() if row.table == "endd"]
    return PageTable.of("paper-endd", caption, header, rows)


def _endd_row(run: Run, row: PaperRow) -> list[Cell | str]:
    teachers = EXPERIMENTS[row.experiment].members
    wanted = ("dirichlet", "clean") if row.method == "endd" else (BATCH_ENSEMBLE, row.method)
    same = [name for name in _methods_of(run, *wanted) if paper_row(run, name, row.calibration)]
    scores = run.scored(same[0]) if same and run.members == teachers else []
    cells = [Cell(_ours(scores, column), paper=getattr(row, column)) for column in _ENDD]
    return [f"{teachers}, {_NAMES[row.method]}", *cells]


def _methods_of(run: Run, form: str, perturbation: str) -> list[str]:
    """The methods of a form and a perturbation."""
    return [name for name in run.methods_with(perturbation) if run.recipe.form_table(name).label == form]


def _ours(scores: list[Score], column: str) -> str:
    return mean_text(column, mean_of(scores, column)) if scores else _DASH
