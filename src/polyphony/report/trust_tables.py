"""Tables for people who act on an uncertainty: selective prediction, prediction sets, classes and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from polyphony.report.tables import DASH, PageTable, by, number, share, slug
from polyphony.report.verdict import chosen
from polyphony.runs.rows import GroupedScore, SelectiveScore, SetScore, UnlabelledKld
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

MOST_GROUPS = 20  # rows of a table of classes or groups
_BY = {"doubt": "confidence", "entropy": "entropy", "mutual_information": "mutual information"}


def selective_table(run: Run) -> PageTable:
    """Error rates at chosen coverages by confidence, and the uncertainty that validation images prefer."""
    rows = [row for row in run.table(SelectiveScore) if row.calibration == "calibrated"]
    body = []
    for model in run.models if rows else ():
        scored = run.scored(model)
        valid = by((row for row in rows if (row.model, row.split) == (model, "valid")), "score")
        areas = {score: fmean(row.aurc for row in each) for score, each in valid.items()}
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
                "best order": _BY.get(min(areas, key=areas.__getitem__, default=""), DASH),
            }
        )
    caption = (
        "Selective prediction on test images by calibrated confidence, means over seeds. Error at 80 %: the"
        " error rate among the 80 % of images with the highest confidence. Excess AURC: AURC minus that of"
        " the best possible order. Best order: the uncertainty with the lowest AURC on validation images."
    )
    return PageTable.from_rows("selective", caption, body)


def calibration_table(run: Run) -> PageTable:
    """Three errors of calibration, with the fitted temperature and as predicted."""
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
    """Coverage and size of prediction sets: of all images, then by class."""
    rows = run.table(SetScore)
    if not rows:
        return []
    wanted = sorted(by(rows, "wanted"))
    return [
        _sets(run, rows, wanted),
        *(table for each in wanted for table in _sets_by_class(run, rows, each)),
    ]


def _sets(run: Run, rows: Sequence[SetScore], wanted: Sequence[float]) -> PageTable:
    of_all = by((row for row in rows if row.label is None), "model", "score", "wanted")
    body = []
    for model in run.models:
        for score in by(rows, "score"):
            cells = {"Model": model, "sets": score.upper()}
            for each in wanted:
                at = of_all.get((model, score, each), [])
                cells[f"coverage at {each:.0%}"] = share([row.coverage for row in at])
                cells[f"size at {each:.0%} ↓"] = number([row.size for row in at])
                cells[f"empty at {each:.0%}"] = share([row.empty for row in at])
            body.append(cells)
    caption = (
        "Prediction sets on test images, means over seeds. A set holds the true class with at least the"
        f" wanted probability on average over images (marginal). {rows[0].calibrated:,} validation images"
        f" gave the thresholds, {rows[0].fitted:,} others fitted the temperature. Size: mean number of"
        " classes; at the same coverage smaller is better. LAC: all classes above one probability. APS:"
        " adapts to the image, never empty."
    )
    return PageTable.from_rows("sets", caption, body)


def _sets_by_class(run: Run, rows: Sequence[SetScore], wanted: float) -> list[PageTable]:
    mine = [row for row in rows if (row.score, row.wanted) == ("lac", wanted) and row.label is not None]
    labels, words = lowest(by(mine, "label"), lambda row: row.coverage)
    cells = by(mine, "label", "model")
    tables = []
    for what, text in (("coverage", share), ("size", number)):
        values = {at: [getattr(row, what) for row in each] for at, each in cells.items()}
        body = [[label, *(text(values.get((label, model), [])) for model in run.models)] for label in labels]
        caption = f"LAC sets at {wanted:.0%} by class: {what}, means over seeds.{words}"
        name = f"sets-{round(100 * wanted)}-{what}"
        tables.append(PageTable.of(name, caption, ["Class", *run.models], body))
    return tables


def lowest(groups: Mapping[str, Sequence[Any]], read: Callable[[Any], float]) -> tuple[list[str], str]:
    """The groups that a table shows, in their order, and a sentence if some are left out."""
    ranked = sorted(groups, key=lambda group: fmean(map(read, groups[group])))[:MOST_GROUPS]
    words = f" Only the {MOST_GROUPS} lowest of {len(groups)} are shown." if len(groups) > MOST_GROUPS else ""
    return [group for group in groups if group in ranked], words


def group_tables(run: Run) -> list[PageTable]:
    """The student chosen on validation images on each class, and on each group that the user named."""
    student = chosen(run)
    kinds = {kind: by(rows, "model") for kind, rows in by(run.table(GroupedScore), "by").items()}
    return [_groups(student, kind, models) for kind, models in kinds.items() if student in models]


def _groups(student: str, kind: str, models: Mapping[str, Sequence[GroupedScore]]) -> PageTable:
    groups = by(models[student], "group")
    baselines = [{row.group: row.acc for row in models.get(model, ())} for model in (TEACHERS, BEST_TEACHER)]
    shown, words = lowest(groups, lambda row: row.acc)
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
        for group in shown
    ]
    caption = (
        f"{student} on test images by {kind}, calibrated, means over seeds, beside the accuracy of the"
        " teachers and of the best one alone."
        f" Confusion: the most frequent error and its count.{words}"
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
    """ "shirt → coat (31)": the error that most seeds make most often."""
    pairs = Counter((row.label, row.answer) for row in rows if row.label is not None)
    if not pairs:
        return DASH
    label, answer = pairs.most_common(1)[0][0]
    times = fmean(row.times for row in rows if (row.label, row.answer) == (label, answer))
    return f"{label} → {answer} ({times:.0f})"


def unlabelled_table(run: Run) -> PageTable:
    """How far the teachers disagree on images without labels."""
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
        " share: they reveal little disagreement, as training images do. Above 100 %: they differ from the"
        " validation images."
    )
    return PageTable.from_rows("unlabelled", caption, body)
