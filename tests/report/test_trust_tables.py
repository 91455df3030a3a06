"""Tables and figure on trust: every cell is the mean over seeds of the run's CSV files."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from polyphony.report.figures.quality import COVERAGES, risk_coverage
from polyphony.report.score_tables import unknown_tables
from polyphony.report.tables import PageTable
from polyphony.report.trust_tables import (
    MOST_GROUPS,
    calibration_table,
    group_tables,
    lowest,
    selective_table,
    set_tables,
    unlabelled_table,
)
from polyphony.report.verdict import best_on_validation, verdict
from polyphony.runs.rows import (
    GroupedScore,
    Score,
    SelectiveScore,
    SetScore,
    Temperature,
    UnknownScore,
    UnlabelledKld,
)
from polyphony.runs.run import Run
from polyphony.study.saved import write_table
from polyphony.study.trust import add_groups, write_trust

CLASSES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Run:
    """The small run with all tables on trust, and groups of its images."""
    run = Run.open(small_run)
    (tmp_path / "g.csv").write_text("camera\n" + "old\nnew\nnew\n" * 40)
    add_groups(small_run, f"{tmp_path / 'g.csv'}:camera", 120)
    saved = {
        (m, s, split): each
        for m in run.models
        for split in ("valid", "test")
        for s, each in run.ensemble(m, split).items()
    }
    write_trust(small_run, saved, run.table(Temperature), CLASSES)
    return Run.open(small_run)


def cells(table: PageTable) -> list[dict[str, str]]:
    return [dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows]


def test_errors_of_calibration_are_means_over_seeds(run):
    assert not calibration_table(run).rows  # of a run of an earlier version
    rows = [
        replace(score, adaptive_ece=0.01 * at, class_wise_ece=0.001 * at)
        for at, score in enumerate(run.scores)
    ]
    write_table(run.folder, Score, rows)
    run = Run.open(run.folder)
    table = cells(calibration_table(run))
    assert [row["Model"] for row in table] == run.models
    for row in table:
        for heading, column, kind in (
            ("ECE ↓", "ece", "calibrated"),
            ("adaptive ECE ↓", "adaptive_ece", "calibrated"),
            ("class-wise ECE, as predicted ↓", "class_wise_ece", "standard"),
        ):
            scored = run.scored(row["Model"], calibration=kind)
            assert row[heading] == f"{fmean(getattr(score, column) for score in scored):.4f}"


def test_selective_prediction_is_that_of_scores_csv(run):
    table = selective_table(run)
    by_model = {row["Model"]: row for row in cells(table)}
    assert list(by_model) == run.models
    rows = [
        row for row in run.table(SelectiveScore) if (row.calibration, row.split) == ("calibrated", "valid")
    ]
    for model, row in by_model.items():
        assert row["error ↓"] == f"{100 * fmean(1 - each.acc for each in run.scored(model)):.1f} %"
        areas = {
            score: fmean(r.aurc for r in rows if (r.model, r.score) == (model, score))
            for score in {r.score for r in rows if r.model == model}
        }
        best = {"doubt": "confidence", "entropy": "entropy", "mutual_information": "mutual information"}
        assert row["best order"] == best[min(areas, key=areas.get)]
    assert by_model["kd"]["error at 80 % ↓"] == "–"  # early runs have no such column


def test_sets_of_all_images_and_of_every_class(run):
    overall, *by_class = set_tables(run)
    rows = run.table(SetScore)
    for row in cells(overall):
        mine = [
            r
            for r in rows
            if (r.model, r.score.upper(), r.label, r.wanted) == (row["Model"], row["sets"], None, 0.9)
        ]
        assert row["coverage at 90%"] == f"{100 * fmean(r.coverage for r in mine):.1f} %"
        assert row["size at 90% ↓"] == f"{fmean(r.size for r in mine):.2f}"
    assert f"{rows[0].calibrated} validation images" in overall.caption
    assert [table.name for table in by_class] == [
        "sets-90-coverage",
        "sets-90-size",
        "sets-95-coverage",
        "sets-95-size",
    ]
    for row in cells(by_class[0]):
        for model in run.models:
            key = ("lac", 0.9, row["Class"], model)
            mine = [r.coverage for r in rows if (r.score, r.wanted, r.label, r.model) == key]
            assert row[model] == f"{100 * fmean(mine):.1f} %"


def test_classes_and_groups_of_one_student(run):
    by_class, by_camera = group_tables(run)
    rows = [row for row in run.table(GroupedScore) if row.model == best_on_validation(run)]
    assert [row["class"] for row in cells(by_class)] == list(CLASSES)
    assert {row["camera"]: row["images"] for row in cells(by_camera)} == {"old": "40", "new": "80"}
    for row in cells(by_class):
        mine = [r for r in rows if (r.by, r.group) == ("class", row["class"])]
        assert row["accuracy ↑"] == f"{100 * fmean(r.acc for r in mine):.1f} %"
        assert row["confidence"] == f"{100 * fmean(r.confidence for r in mine):.1f} %"
        for model in ("teachers", "best teacher"):
            key = (model, "class", row["class"])
            theirs = [r.acc for r in run.table(GroupedScore) if (r.model, r.by, r.group) == key]
            assert row[f"{model} ↑"] == (f"{100 * fmean(theirs):.1f} %" if theirs else "–")
        pairs = [f"{r.label} → {r.answer}" for r in mine if r.label]
        assert row["confusion"].rpartition(" (")[0] in pairs or not pairs


def test_a_table_of_many_groups_has_the_lowest_in_their_order():
    rows = {
        f"g{k}": [GroupedScore("kd", 0, "class", f"g{k}", 1, (k * 7 % 30) / 30, 0, 0, None, None, 0)]
        for k in range(30)
    }
    shown, words = lowest(rows, lambda row: row.acc)
    assert len(shown) == MOST_GROUPS
    assert shown == [name for name in rows if rows[name][0].acc < MOST_GROUPS / 30]
    assert "Only the 20 lowest of 30" in words


def test_unlabelled_images_are_compared_with_validation_images(run):
    assert not unlabelled_table(run).rows
    write_table(run.folder, UnlabelledKld, [UnlabelledKld(1234, 0.05, 0.1)])
    table = unlabelled_table(Run.open(run.folder))
    assert [cell.text for cell in table.rows[0]] == ["1,234 images", "0.050", "0.100", "50%"]


def test_the_curve_is_the_mean_over_seeds(run):
    chart = risk_coverage(run)
    rows = list(csv.DictReader(io.StringIO(chart.numbers.csv())))
    assert list(dict.fromkeys(row["model"] for row in rows)) == run.models
    tested = run.ensemble("kd-ods", "test")
    for coverage in (0.5, 0.8, 1.0):
        errors = []
        for seed, each in tested.items():
            log_probs = each.log_probs(run.temperatures["kd-ods", seed]).numpy()
            order = np.argsort(-log_probs.max(-1))[: round(coverage * 120)]
            errors.append((log_probs.argmax(-1) != each.labels.numpy())[order].mean())
        at = next(row for row in rows if (row["model"], float(row["coverage"])) == ("kd-ods", coverage))
        assert float(at["error"]) == pytest.approx(np.mean(errors))
    assert len(rows) == len(COVERAGES) * len(run.models)
    assert chart.files()


def test_an_older_run_has_none_of_the_tables(small_run):
    run = Run.open(small_run)
    assert [*set_tables(run), *group_tables(run)] == []
    assert not [*selective_table(run).rows, *unlabelled_table(run).rows]


def test_the_verdict_compares_errors_at_80_percent_coverage_with_the_best_teacher(run):
    assert "At 80 %" not in verdict(run).sentence
    errors = {"best teacher": 0.1, best_on_validation(run): 0.086}
    rows = [replace(row, error_80=errors.get(row.model, 0.5)) for row in run.scores]
    if not run.scored("best teacher"):
        alike = [row for row in rows if row.model == best_on_validation(run) and row.seed == 0]
        rows += [replace(row, model="best teacher", seed=1, error_80=0.1) for row in alike]
    write_table(run.folder, Score, rows)
    said = verdict(Run.open(run.folder)).sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert said.endswith("At 80 % coverage its error rate is 8.6 %, that of your best single network 10.0 %.")


def test_the_best_score_of_unknown_images_is_bold(run):
    scores = {"entropy": 0, "energy": 1}
    rows = [
        UnknownScore("kd", s, "svhn", name, 0.9, 0.8, 0.1, 0.2, 1.0, best)
        for s in (0, 1)
        for name, best in scores.items()
    ]
    write_table(run.folder, UnknownScore, rows)
    (table,) = unknown_tables(Run.open(run.folder))
    (row,) = table.rows
    bold = [name for name, cell in zip(table.header, row, strict=True) if cell.best]
    assert bold == ["AUROC, energy ↑"]
