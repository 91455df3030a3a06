"""The figures' numbers, against independent computations."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.transforms import Bbox
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from polyphony.report import Run
from polyphony.report.chart import Absent, Chart
from polyphony.report.figures.diversity import external_diversity, student_diversity, teacher_diversity
from polyphony.report.figures.jacobians import gradient_snr, jacobian_matching, roc
from polyphony.report.figures.members import member_predictions, visible_difference
from polyphony.report.figures.price import free_places, other_costs, quality_for_price
from polyphony.report.figures.quality import dee_curves, reliability_diagrams
from polyphony.report.figures.shift import by_corruption, corruption_boxes, entropy_histograms
from polyphony.report.figures.training import over_seeds
from polyphony.runs.rows import CorruptedScore
from polyphony.runs.scores import TEACHERS


def numbers(chart: object) -> list[dict[str, str]]:
    assert isinstance(chart, Chart), chart
    return list(csv.DictReader(io.StringIO(chart.numbers.csv())))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def naive_diversity(logits: np.ndarray, bins: int = 15) -> list[tuple[int, float]]:
    """Count and mean KL of each bin, example by example and pair by pair."""
    probs = softmax(logits)
    members = len(probs)
    klds: list[list[float]] = [[] for _ in range(bins)]
    for example in range(probs.shape[1]):
        p = probs[:, example]
        pairs = [(i, j) for i in range(members) for j in range(members) if i != j]
        kld = np.mean([(p[j] * np.log(p[j] / p[i])).sum() for i, j in pairs])
        klds[min(bins - 1, math.ceil(p.max(-1).min() * bins) - 1)].append(float(kld))
    return [(len(each), float(np.mean(each)) if each else math.nan) for each in klds]


def test_diversity_of_teachers_is_the_naive_one(small_run: Path):
    rows = numbers(teacher_diversity(Run.open(small_run)))
    saved = load_file(small_run / "predictions" / TEACHERS / "train+kd-ods.safetensors")["logits"]
    mine = [row for row in rows if row["examples"] == "training, as in kd-ods"]
    for row, (count, kld) in zip(mine, naive_diversity(saved), strict=True):
        assert int(row["count"]) == count
        assert row["kld"] == "" if count == 0 else float(row["kld"]) == pytest.approx(kld, rel=1e-9)


def test_diversity_on_test_is_of_the_ensemble_without_extra_teachers(small_run: Path):
    rows = numbers(teacher_diversity(Run.open(small_run)))
    saved = load_file(small_run / "predictions" / TEACHERS / "test.safetensors")["logits"][:3]
    bins = naive_diversity(saved)
    mean = sum(count * kld for count, kld in bins if count) / sum(count for count, _ in bins)
    mine = [row for row in rows if row["examples"] == "test images"]
    assert float(mine[0]["mean_kld"]) == pytest.approx(mean, rel=1e-9)


def test_diversity_of_students_is_over_all_seeds(small_run: Path):
    rows = numbers(student_diversity(Run.open(small_run)))
    folder = small_run / "predictions" / "kd-ods"
    saved = [load_file(folder / seed / "test.safetensors")["logits"] for seed in ("0", "1")]
    for row, (count, kld) in zip(
        [r for r in rows if r["examples"] == "kd-ods"],
        naive_diversity(np.concatenate(saved, axis=1)),
        strict=True,
    ):
        assert int(row["count"]) == count
        assert count == 0 or float(row["kld"]) == pytest.approx(kld, rel=1e-9)


def test_the_dee_curve_is_the_saved_one(small_run: Path):
    rows = numbers(dee_curves(Run.open(small_run)))
    curve = [float(r["nll"]) for r in rows if (r["calibration"], r["model"]) == ("standard", TEACHERS)]
    with (small_run / "analysis" / "dee.csv").open() as file:
        saved = [r for r in csv.DictReader(file) if (r["split"], r["calibration"]) == ("test", "standard")]
    assert curve == [float(row["nll"]) for row in saved]
    assert len(curve) == 6
    run = Run.open(small_run)
    for model in run.models[1:]:
        marks = [(r["calibration"], r["dee"]) for r in rows if r["model"] == model]
        expected = [
            (k, str(s.dee)) for k in ("calibrated", "standard") for s in run.scored(model, calibration=k)
        ]
        assert marks == expected


def test_reliability_bins_give_back_the_ece(small_run: Path):
    run = Run.open(small_run)
    rows = numbers(reliability_diagrams(run))
    saved = run.pooled("kd", "test")
    assert saved is not None
    probs = softmax(saved.logits.numpy()).mean(0)
    confidence, right = probs.max(-1), probs.argmax(-1) == saved.labels.numpy()
    mine = [r for r in rows if (r["model"], r["calibration"]) == ("kd", "standard")]
    for row in mine:
        inside = (confidence > float(row["confidence_above"])) & (confidence <= float(row["confidence_to"]))
        assert int(row["count"]) == inside.sum()
        if inside.any():
            assert float(row["confidence"]) == pytest.approx(confidence[inside].mean(), rel=1e-9)
            assert float(row["accuracy"]) == pytest.approx(right[inside].mean(), rel=1e-9)


STUDENTS = ("scratch", "kd", "kd-gaussian", "kd-ods")


def test_the_picture_of_the_price_has_every_model_at_its_milliseconds_and_nll(full_run: Path):
    run = Run.open(full_run)
    rows = numbers(quality_for_price(run))
    points = {row["model"]: (float(row["value"]), float(row["nll"])) for row in rows}
    models = dict(zip(run.models, ("3 teachers", "best teacher", *STUDENTS), strict=True))
    prices = {"teachers": 3.0, "best teacher": 1.0}
    assert points == {
        label: (prices.get(model, 1.2), run.mean(model, "nll").mean) for model, label in models.items()
    }


def test_every_mark_of_the_picture_is_labelled_and_stands_at_its_price(full_run: Path):
    chart = quality_for_price(Run.open(full_run))
    assert isinstance(chart, Chart)
    (axes,) = chart.figure().axes
    assert {text.get_text() for text in axes.texts} == {"3 teachers", "best teacher", *STUDENTS}
    places = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in (None, "None", "")]
    assert sorted(places) == [1.0, 1.2, 1.2, 1.2, 1.2, 3.0]
    assert b"kd-ods" in chart.files()["price.svg"]


def test_other_costs_are_the_file_and_the_training(full_run: Path, small_run: Path):
    rows = numbers(other_costs(Run.open(full_run)))
    sizes = {r["model"]: float(r["value"]) for r in rows if r["cost"].startswith("megabytes")}
    assert (sizes["3 teachers"], sizes["kd"]) == (0.015, 0.006)
    times = {r["model"]: float(r["value"]) for r in rows if r["cost"].startswith("seconds")}
    assert (times["3 teachers"], times["best teacher"], times["kd"]) == (60.0, 20.0, 35.5)
    rows = numbers(other_costs(Run.open(small_run)))  # whose files were not measured
    sizes = {r["model"]: float(r["value"]) for r in rows if r["cost"] == "million parameters"}
    assert sizes["3 teachers"] == 0.003


def mark(x: float, y: float) -> Bbox:
    return Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)


@given(st.lists(st.tuples(st.floats(0, 328), st.floats(0, 220)), min_size=1, max_size=5))
def test_labels_overlap_nothing_and_stay_inside(places: list[tuple[float, float]]):
    marks = [mark(*place) for place in places]
    labels = free_places(marks, [60.0] * len(marks), 328.0, 220.0)
    for one, other in itertools.combinations(labels, 2):
        assert not one.overlaps(other)
    for label in labels:
        assert not label.count_overlaps(marks)
        assert label.x0 >= 0
        assert label.x1 <= 328
        assert label.y0 >= 0
        assert label.y1 <= 220


def test_a_label_with_room_is_right_of_its_mark():
    (label,) = free_places([mark(100, 100)], [50.0], 328.0, 220.0)
    assert (label.x0, label.x1) == (116, 166)
    assert label.y0 < 100 < label.y1


def test_entropy_shares_are_a_histogram_over_all_seeds(full_run: Path):
    run = Run.open(full_run)
    (chart,) = entropy_histograms(run)
    rows = [r for r in numbers(chart) if r["model"] == "kd"]
    folder = full_run / "predictions" / "kd"
    logits = [load_file(folder / seed / "ood-svhn.safetensors")["logits"] for seed in ("0", "1")]
    probs = softmax(np.concatenate(logits, axis=1)).mean(0)
    entropies = -(probs * np.log(probs)).sum(-1)
    for row in rows:
        low, high = float(row["entropy_above"]), float(row["entropy_to"])
        assert float(row["share_unknown"]) == pytest.approx(((entropies >= low) & (entropies < high)).mean())
    assert sum(float(row["share_known"]) for row in rows) == pytest.approx(1.0)


def test_corruptions_are_averaged_over_seeds_one_by_one():
    rows = [
        CorruptedScore("kd", seed, "digits-c", kind, 2, 0.9, nll, 0.1, 0.1)
        for seed, kind, nll in ((0, "fog", 1.0), (1, "fog", 2.0), (0, "blur", 5.0))
    ]
    assert by_corruption(rows, "nll") == {"kd": {("fog", 2): 1.5, ("blur", 2): 5.0}}


cosines = st.lists(st.sampled_from([-0.5, 0.0, 0.1, 0.2, 0.7]) | st.floats(-1, 1), min_size=1, max_size=30)


@given(cosines, cosines)
def test_the_area_under_the_roc_is_scikit_learns(scratch: list[float], distilled: list[float]):
    x, y = roc(torch.tensor(scratch, dtype=torch.float64), torch.tensor(distilled, dtype=torch.float64))
    area = float(torch.trapezoid(y, x))
    truth = [0] * len(scratch) + [1] * len(distilled)
    assert area == pytest.approx(roc_auc_score(truth, scratch + distilled), abs=1e-12)
    assert (float(x[0]), float(y[0]), float(x[-1]), float(y[-1])) == (0, 0, 1, 1)


def test_a_method_without_scores_is_left_out_of_jacobians(full_run: Path):
    scores = full_run / "scores.csv"
    lines = scores.read_text().splitlines(keepends=True)
    scores.write_text("".join(line for line in lines if not line.startswith("kd,")))
    chart, table = jacobian_matching(Run.open(full_run))
    assert [row[0].text for row in table.rows] == ["scratch", "kd-gaussian", "kd-ods"]
    assert chart.files()


def test_unknown_classes_are_not_shown_without_test_images(full_run: Path):
    (full_run / "predictions" / "teachers" / "test.safetensors").unlink()
    (figure,) = entropy_histograms(Run.open(full_run))
    assert isinstance(figure, Absent)


def test_the_jacobians_table_has_means_and_areas(full_run: Path):
    _, table = jacobian_matching(Run.open(full_run))
    text = (full_run / "analysis" / "jacobians.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    by_method = {
        method: [float(r["cosine"]) for r in rows if (r["model"], r["split"]) == (method, "valid")]
        for method in ("scratch", "kd-ods")
    }
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}  # type: ignore[union-attr]
    truth = [0] * len(by_method["scratch"]) + [1] * len(by_method["kd-ods"])
    area = roc_auc_score(truth, by_method["scratch"] + by_method["kd-ods"])
    assert cells["kd-ods"][2:] == [f"{np.mean(by_method['kd-ods']):.3f}", f"{area:.3f}"]
    assert cells["scratch"][3] == "–"


def test_learning_curves_average_over_the_trainings_that_reached_the_epoch():
    logs = [
        [{"epoch": 0, "valid_nll": 2.0}, {"epoch": 1, "valid_nll": 1.0}],
        [{"epoch": 0, "valid_nll": 4.0}],
        [{"epoch": 0, "valid_nll": math.nan}],
    ]
    assert over_seeds(logs, "valid_nll") == [(1, 3.0, 2.0, 4.0), (2, 1.0, 1.0, 1.0)]


def test_the_difference_is_scaled_around_grey():
    image = torch.tensor([[[10, 20], [30, 40]]], dtype=torch.uint8)
    perturbed = torch.tensor([[[10, 24], [28, 40]]], dtype=torch.uint8)
    picture = visible_difference(image, perturbed)
    np.testing.assert_allclose(picture[..., 0], [[0.5, 1.0], [0.25, 0.5]])
    assert picture.shape == (2, 2, 3)


def test_member_predictions_are_those_saved(full_run: Path):
    rows = numbers(member_predictions(Run.open(full_run)))
    saved = load_file(full_run / "analysis" / "members.safetensors")["students.kd"]
    chosen = next(
        r
        for r in rows
        if (r["example"], r["model"], r["when"], r["member"], r["class"]) == ("4", "kd", "after", "2", "3")
    )
    assert float(chosen["probability"]) == float(saved[1, 1, 3, 3])


MISSING: dict[str, Callable[[Run], object]] = {
    "polyphony analyse RUN transfer": external_diversity,
    "polyphony analyse RUN members": member_predictions,
    "polyphony analyse RUN snr": gradient_snr,
    "polyphony analyse RUN jacobians": lambda run: jacobian_matching(run)[0],
    "polyphony evaluate RUN --ood NAME": lambda run: entropy_histograms(run)[0],
    "polyphony evaluate RUN --corrupted NAME": lambda run: corruption_boxes(run)[0],
    "polyphony analyse RUN latency": quality_for_price,
}


@pytest.mark.parametrize("words", MISSING)
def test_what_was_not_measured_is_listed_as_missing(words: str, small_run: Path):
    figure = MISSING[words](Run.open(small_run))
    assert isinstance(figure, Absent)
    assert words in figure.why


def test_a_run_without_predictions_says_so(small_run: Path):
    for path in (small_run / "predictions").rglob("*.safetensors"):
        path.unlink()
    run = Run.open(small_run)
    for figure in (
        teacher_diversity(run),
        student_diversity(run),
        reliability_diagrams(run),
    ):
        assert isinstance(figure, Absent)
        assert "not in the run folder" in figure.why
