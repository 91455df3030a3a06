"""Tables of scores on unknown classes and corrupted images, seeds averaged, the paper's beside them."""

from __future__ import annotations

from collections.abc import Sequence

from polyphony import metrics
from polyphony.report.files import Row
from polyphony.report.paper import Comparison, PaperRow
from polyphony.report.run import Run
from polyphony.report.summary import paper_row
from polyphony.report.tables import Cell, Table, slug
from polyphony.scores import HEADINGS, mean_text

_UNKNOWN = {
    ("entropy", "auroc"): "AUROC, entropy ↑",
    ("mutual_information", "auroc"): "AUROC, mutual inf. ↑",
    ("doubt", "auroc"): "AUROC, confidence ↑",
    ("entropy", "aupr"): "AUPR, entropy ↑",
    ("entropy", "fpr95"): "FPR95, entropy ↓",
}
_CORRUPTED = ("acc", "nll", "bs", "ece")
_PAPERS_IMAGES = 10_000  # of every kind and severity of CIFAR-10-C and CIFAR-100-C


def unknown_tables(run: Run) -> list[Table]:
    """For each set of unknown classes, how well each model tells it from test images, by entropy."""
    rows = run.analysis("ood") or []
    return [_unknown(run, name, rows) for name in dict.fromkeys(row["unknown"] for row in rows)]


def _unknown(run: Run, name: str, rows: Sequence[Row]) -> Table:
    body = []
    for model in run.models:
        mine = [row for row in rows if (row["model"], row["unknown"]) == (model, name)]
        if mine:
            cells = (Cell(_mean([r for r in mine if r["score"] == s], column)) for s, column in _UNKNOWN)
            body.append((Cell(model), *cells))
    caption = (
        f"Telling {name} (unknown: the positive class) from test images by an uncertainty: the entropy of the"
        " mean, the members' mutual information, or low confidence; mean ± s.d. over seeds."
    )
    return Table(f"unknown-{slug(name)}", caption, ("Model", *_UNKNOWN.values()), tuple(body))


def corrupted_tables(run: Run, paper: Comparison | None) -> list[Table]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    rows = run.analysis("corrupted") or []
    return [_corrupted(run, name, rows, paper) for name in dict.fromkeys(row["data"] for row in rows)]


def _corrupted(run: Run, name: str, rows: Sequence[Row], paper: Comparison | None) -> Table:
    body = []
    paper = paper if paper and _is_official(run, name, rows) else None
    for model in run.models:
        seeds = dict.fromkeys(row["seed"] for row in rows if (row["model"], row["data"]) == (model, name))
        each = [[r for r in rows if (r["model"], r["data"], r["seed"]) == (model, name, s)] for s in seeds]
        if each:
            printed = paper_row(run, model, "standard", paper, "corrupted")
            cells = (_over_all(each, column, printed) for column in _CORRUPTED)
            body.append((Cell(model), *cells))
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return Table(
        f"corrupted-{slug(name)}",
        caption,
        ("Model", *(HEADINGS[column] for column in _CORRUPTED)),
        tuple(body),
    )


def _is_official(run: Run, name: str, rows: Sequence[Row]) -> bool:
    """Whether rows are of all the published images, as the paper's are: not made here, nor only the first."""
    conditions = {(row["corruption"], row["severity"]) for row in rows if row["data"] == name}
    splits = (f"corrupted-{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)


def _over_all(seeds: Sequence[Sequence[Row]], column: str, printed: PaperRow | None) -> Cell:
    means = [metrics.summarise_corruptions(_by_condition(rows, column)).mean for rows in seeds]
    text = mean_text(column, metrics.mean_sd(means))
    return Cell(text, paper=printed.text(column) if printed else "")


def _by_condition(rows: Sequence[Row], column: str) -> dict[tuple[str, int], float]:
    return {(row["corruption"], int(row["severity"])): float(row[column]) for row in rows}


def _mean(rows: Sequence[Row], column: str) -> str:
    if not rows:
        return "–"
    return metrics.format_mean_sd(metrics.mean_sd([float(row[column]) for row in rows]), 3)
