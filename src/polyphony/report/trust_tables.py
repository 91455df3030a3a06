"""Tables on when to trust a prediction: selective prediction, prediction sets, classes and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from polyphony.report.tables import DASH, PageTable, by, number, share, slug
from polyphony.report.verdict import best_on_validation
from polyphony.runs.rows import GroupedScore, SelectiveScore, SetScore, UnlabelledKld
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

MOST_GROUPS = 20  # most rows in a table of classes or groups
_BY = {"doubt": "confidence", "entropy": "entropy", "mutual_information": "mutual information"}


def selective_table(run: Run) -> PageTable:
    """Error rates at 90 % and 80 % coverage by confidence, and the uncertainty that is best on validation."""
    rows = [row for row in run.table(SelectiveScore) if row.calibration == "calibrated"]
    body = []
    for model in run.models if rows else ():
        scored = run.scored(model)
        valid = by((row for row in rows if (row.model, row.split) == (model, "valid")), "score")
        aurcs = {score: fmean(row.aurc for row in scores) for score, scores in valid.items()}
        body.append(
            {
                "Model": model,
                "error ↓": share([1 - row.acc for row in scored]),
                "error at 90 % ↓": share([row.error_90 for row in scored]),
                "error at 80 % ↓": share([row.error_80 for row in scored]),
                "coverage at 5 % errors ↑": share([row.coverage_5 for row in scored]),
                "AURC ↓": number([row.aurc for row in scored], 4),
                "excess AURC ↓": number([row.excess_aurc for row in scored], 4),
                "AUROC of errors ↑": number([row.error_auroc for row in scored], 3),
                "best order": _BY.get(min(aurcs, key=aurcs.__getitem__, default=""), DASH),
            }
        )
    caption = (
        "Selective prediction on test images by calibrated confidence, means over seeds. Error at 80 %: the"
        " error rate among the 80 % of images with the highest confidence. Coverage at 5 % errors: the"
        " largest share of images with at most this error rate. AURC: the area under the curve of error rate"
        " against coverage. Excess AURC: AURC minus that of the best possible order. AUROC of errors: the"
        " probability that a wrong answer has a lower confidence than a right one. Best order: the"
        " uncertainty with the lowest AURC on validation images."
    )
    return PageTable.from_rows("selective", caption, body)


def calibration_table(run: Run) -> PageTable:
    """ECE, adaptive ECE and class-wise ECE, with the fitted temperature and as predicted."""
    columns = {"ECE": "ece", "adaptive ECE": "adaptive_ece", "class-wise ECE": "class_wise_ece"}
    body = []
    for model in run.models if any(row.adaptive_ece is not None for row in run.scores) else ():
        cells = {"Model": model}
        for words, kind in (("", "calibrated"), (", as predicted", "standard")):
            scored = run.scored(model, calibration=kind)
            for heading, column in columns.items():
                cells[f"{heading}{words} ↓"] = number([getattr(row, column) for row in scored], 4)
        body.append(cells)
    caption = (
        "Calibration on test images, means over seeds: the mean distance between confidence and accuracy."
        " ECE: over 15 bins of equal width. Adaptive ECE: over bins of equally many images. Class-wise ECE:"
        " of the probability of each class, mean over classes."
    )
    return PageTable.from_rows("calibration", caption, body)


def set_tables(run: Run) -> list[PageTable]:
    """Coverage and size of prediction sets: on all images, then by class."""
    rows = run.table(SetScore)
    if not rows:
        return []
    levels = sorted(by(rows, "wanted"))
    by_class = [table for level in levels for table in _sets_by_class(run, rows, level)]
    return [_sets(run, rows, levels), *by_class]


def _sets(run: Run, rows: Sequence[SetScore], levels: Sequence[float]) -> PageTable:
    """Prediction sets on all images; `levels` are the coverages that the sets were made for."""
    overall = by((row for row in rows if row.label is None), "model", "score", "wanted")
    body = []
    for model in run.models:
        for score in by(rows, "score"):
            cells = {"Model": model, "sets": score.upper()}
            for level in levels:
                seeds = overall.get((model, score, level), [])
                cells[f"coverage at {level:.0%}"] = share([row.coverage for row in seeds])
                cells[f"size at {level:.0%} ↓"] = number([row.size for row in seeds])
                cells[f"empty at {level:.0%}"] = share([row.empty for row in seeds])
            body.append(cells)
    caption = (
        "Prediction sets on test images, means over seeds. On average over images a set holds the true class"
        " with at least the probability in the heading (marginal coverage)."
        f" {rows[0].calibrated:,} validation images set the thresholds, {rows[0].fitted:,} others the"
        " temperature. Size: mean number of classes; at the same coverage smaller is better. LAC: all classes"
        " above one probability. APS: adapts to the image, never empty."
    )
    return PageTable.from_rows("sets", caption, body)


def _sets_by_class(run: Run, rows: Sequence[SetScore], level: float) -> list[PageTable]:
    """Coverage and size of the LAC sets of each class, at one coverage level."""
    lac = [row for row in rows if (row.score, row.wanted) == ("lac", level) and row.label is not None]
    labels, note = lowest(by(lac, "label"), lambda row: row.coverage)
    cells = by(lac, "label", "model")
    tables = []
    for column, text in (("coverage", share), ("size", number)):
        values = {at: [getattr(row, column) for row in seeds] for at, seeds in cells.items()}
        body = [[label, *(text(values.get((label, model), [])) for model in run.models)] for label in labels]
        caption = f"LAC sets at {level:.0%} by class: {column}, means over seeds.{note}"
        name = f"sets-{round(100 * level)}-{column}"
        tables.append(PageTable.of(name, caption, ["Class", *run.models], body))
    return tables


def lowest(groups: Mapping[str, Sequence[Any]], read: Callable[[Any], float]) -> tuple[list[str], str]:
    """The groups with the lowest mean of `read`, in their own order, and a sentence if some are left out."""
    ranked = sorted(groups, key=lambda group: fmean(map(read, groups[group])))[:MOST_GROUPS]
    note = f" Only the {MOST_GROUPS} lowest of {len(groups)} are shown." if len(groups) > MOST_GROUPS else ""
    return [group for group in groups if group in ranked], note


def group_tables(run: Run) -> list[PageTable]:
    """The best student on validation images, by class and by each grouping that the user named."""
    student = best_on_validation(run)
    kinds = {kind: by(rows, "model") for kind, rows in by(run.table(GroupedScore), "by").items()}
    return [_groups(student, kind, models) for kind, models in kinds.items() if student in models]


def _groups(student: str, kind: str, models: Mapping[str, Sequence[GroupedScore]]) -> PageTable:
    groups = by(models[student], "group")
    baselines = [{row.group: row.acc for row in models.get(model, ())} for model in (TEACHERS, BEST_TEACHER)]
    names, note = lowest(groups, lambda row: row.acc)
    body = [
        [
            group,
            f"{groups[group][0].n:,}",
            share(row.acc for row in groups[group]),
            *(share([accuracies.get(group)]) for accuracies in baselines),
            number((row.ece for row in groups[group]), 3),
            share(row.confidence for row in groups[group]),
            _confusion(groups[group]),
        ]
        for group in names
    ]
    caption = (
        f"{student} on test images by {kind}, calibrated, means over seeds. Teachers and best teacher: their"
        f" accuracy. Confusion: the most frequent error and its count.{note}"
    )
    header = [
        kind,
        "images",
        "accuracy ↑",
        "teachers ↑",
        "best teacher ↑",
        "ECE ↓",
        "confidence",
        "confusion",
    ]
    return PageTable.of(f"groups-{slug(kind)}", caption, header, body)


def _confusion(rows: Sequence[GroupedScore]) -> str:
    """ "shirt → coat (31)": the error that is the most frequent one in most seeds, and its mean count."""
    pairs = Counter((row.label, row.answer) for row in rows if row.label is not None)
    if not pairs:
        return DASH
    label, answer = pairs.most_common(1)[0][0]
    times = fmean(row.times for row in rows if (row.label, row.answer) == (label, answer))
    return f"{label} → {answer} ({times:.0f})"


def unlabelled_table(run: Run) -> PageTable:
    """The teachers' mean-KLD on images without labels, beside that on validation images."""
    body = [
        {
            "Without labels": f"{row.n:,} images",
            "mean-KLD": f"{row.kld:.3f}",
            "mean-KLD, validation": f"{row.valid_kld:.3f}",
            "share": f"{row.kld / row.valid_kld:.0%}",
        }
        for row in run.table(UnlabelledKld)
        if row.valid_kld
    ]
    caption = (
        "Images without labels: the teachers’ mean-KLD on them as a share of that on validation images. A low"
        " share: they reveal little disagreement, like training images. Above 100 %: they differ from the"
        " validation images."
    )
    return PageTable.from_rows("unlabelled", caption, body)
