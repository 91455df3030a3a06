"""Tables of scores on unknown classes and corrupted images, seeds averaged, the paper's beside them."""

from __future__ import annotations

from collections.abc import Sequence

from polyphony import metrics
from polyphony.report.run import Run
from polyphony.report.summary import paper_row
from polyphony.report.tables import Cell, PageTable, slug
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
    return mean_text(column, metrics.mean_sd(values)) if values else "–"


def corrupted_tables(run: Run) -> list[PageTable]:
    """For each corrupted data set, the mean over all corruptions and severities of each model's scores."""
    names = dict.fromkeys(row.data for row in run.table(CorruptedScore))
    return [_corrupted(run, name) for name in names]


def _corrupted(run: Run, name: str) -> PageTable:
    rows = [row for row in run.table(CorruptedScore) if row.data == name]
    official = _is_official(run, name, rows)
    body: list[list[Cell | str]] = []
    for model in run.models:
        printed = paper_row(run, model, "standard", "corrupted") if official else None
        if mine := [row for row in rows if row.model == model]:
            cells = [Cell(_over_all(mine, c), paper=printed.text(c) if printed else "") for c in _CORRUPTED]
            body.append([model, *cells])
    caption = f"{name}: mean over all corruptions and severities, as predicted; mean ± s.d. over seeds."
    return PageTable.of(f"corrupted-{slug(name)}", caption, ["Model", *_CORRUPTED.values()], body)


def _is_official(run: Run, name: str, rows: Sequence[CorruptedScore]) -> bool:
    """Whether rows are of all the published images, as the paper's are: not made here, nor only the first."""
    conditions = {(row.corruption, row.severity) for row in rows}
    splits = (f"{CORRUPTED}{name}-{kind}-{severity}" for kind, severity in conditions)
    return not name.endswith("-regenerated") and all(run.images(s) == _PAPERS_IMAGES for s in splits)


def _over_all(rows: Sequence[CorruptedScore], column: str) -> str:
    """A model's score over its seeds, each a mean over corruptions and severities."""
    seeds: dict[int | None, dict[tuple[str, int], float]] = {}
    for row in rows:
        seeds.setdefault(row.seed, {})[row.corruption, row.severity] = getattr(row, column)
    return mean_text(column, metrics.mean_sd([metrics.grid_mean(each) for each in seeds.values()]))
