"""Tables of scores on unknown classes and corrupted images, seeds averaged, the paper's beside them."""

from __future__ import annotations

from collections.abc import Sequence

from polyphony import metrics
from polyphony.report.paper import PaperRow
from polyphony.report.run import Run
from polyphony.report.summary import paper_row
from polyphony.report.tables import Cell, Table, slug
from polyphony.rows import CorruptedScore, UnknownScore, headings
from polyphony.scores import mean_text
from polyphony.store import CORRUPTED

_UNKNOWN = {
    ("entropy", "auroc"): "AUROC, entropy ↑",
    ("mutual_information", "auroc"): "AUROC, mutual inf. ↑",
    ("doubt", "auroc"): "AUROC, confidence ↑",
    ("entropy", "aupr"): "AUPR, entropy ↑",
    ("entropy", "fpr95"): "FPR95, entropy ↓",
}
_CORRUPTED = headings(CorruptedScore)
_PAPERS_IMAGES = 10_000  # of every kind and severity of CIFAR-10-C and CIFAR-100-C


def unknown_tables(run: Run) -> list[Table]:
    """For each set of unknown classes, how well each model tells it from test images, by entropy."""
    rows = run.table(UnknownScore)
    return [_unknown(run, name, rows) for name in dict.fromkeys(row.unknown for row in rows)]


def _unknown(run: Run, name: str, rows: Sequence[UnknownScore]) -> Table:
    body = []
    for model in run.models:
        mine = [row for row in rows if (row.model, row.unknown) == (model, name)]
        if mine:
            cells = (
                Cell(_mean([getattr(row, column) for row in mine if row.score == score]))
                for score, column in _UNKNOWN
            )
            body.append((Cell(model), *cells))
    caption = (
        f"Telling {name} (unknown: the positive class) from test images by an uncertainty: the entropy of the"
        " mean, the members' mutual information, or low confidence; mean ± s.d. over seeds."
    )
    return Table(f"unknown-{slug(name)}", caption, ("Model", *_UNKNOWN.values()), tuple(body))


def corrupted_tables(run: Run) -> list[Table]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    rows = run.table(CorruptedScore)
    return [_corrupted(run, name, rows) for name in dict.fromkeys(row.data for row in rows)]


def _corrupted(run: Run, name: str, rows: Sequence[CorruptedScore]) -> Table:
    body = []
    rows = [row for row in rows if row.data == name]
    official = _is_official(run, name, rows)
    for model in run.models:
        seeds = dict.fromkeys(row.seed for row in rows if row.model == model)
        each = [[row for row in rows if (row.model, row.seed) == (model, seed)] for seed in seeds]
        if each:
            printed = paper_row(run, model, "standard", "corrupted") if official else None
            cells = (_over_all(each, column, printed) for column in _CORRUPTED)
            body.append((Cell(model), *cells))
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return Table(
        f"corrupted-{slug(name)}",
        caption,
        ("Model", *_CORRUPTED.values()),
        tuple(body),
    )


def _is_official(run: Run, name: str, rows: Sequence[CorruptedScore]) -> bool:
    """Whether rows are of all the published images, as the paper's are: not made here, nor only the first."""
    conditions = {(row.corruption, row.severity) for row in rows}
    splits = (f"{CORRUPTED}{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)


def _over_all(seeds: Sequence[Sequence[CorruptedScore]], column: str, printed: PaperRow | None) -> Cell:
    means = [
        metrics.grid_mean({(r.corruption, r.severity): getattr(r, column) for r in rows}) for rows in seeds
    ]
    text = mean_text(column, metrics.mean_sd(means))
    return Cell(text, paper=printed.text(column) if printed else "")


def _mean(values: Sequence[float]) -> str:
    return metrics.format_mean_sd(metrics.mean_sd(values), 3) if values else "–"
