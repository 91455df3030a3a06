"""The tables of docs/students.md follow from the scores that are kept with it."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
BRANCH, UNLABELLED = (DOCS / "results" / name for name in ("branch", "unlabelled"))
SETS_AT_90 = {"score": "lac", "wanted": "0.9", "label": ""}


def column(table: Path, name: str, model: str, **where: str) -> np.ndarray:
    where = where or {"split": "test", "calibration": "calibrated"}
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if where.items() <= row.items()]
    return np.array([float(row[name]) for row in rows if row["model"] == model and row[name]])


def half_interval(values: np.ndarray) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def difference(scores: Path, one: str, other: str) -> str:
    apart = column(scores, "nll", one) - column(scores, "nll", other)
    mean = f"{apart.mean():+.3f}".replace("-", "−")
    return f"{mean} ({half_interval(apart):.3f})"


def mean_and_spread(scores: Path, name: str, model: str) -> str:
    values = column(scores, name, model)
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}" if len(values) > 1 else f"{values.mean():.3f}"


def nll(scores: Path, model: str) -> str:
    return mean_and_spread(scores, "nll", model)


def cells(page: str, model: str) -> list[str]:
    row = re.search(rf"^\| [^|]*\(`{model}`\) \|(.*)\|$", page, re.MULTILINE)[1]
    return [cell.strip() for cell in row.split("|")]


@pytest.fixture(scope="module")
def pages() -> list[str]:
    """The page up to images without labels, and the rest."""
    return (DOCS / "students.md").read_text(encoding="utf-8").split("## Images without labels")


@pytest.mark.parametrize("model", ["all", "front-1", "front-2", "hydra", "teachers", "best teacher"])
def test_a_row_of_the_shared_front_is_what_the_kept_scores_say(pages, model):
    scores, student = BRANCH / "scores.csv", model not in ("teachers", "best teacher")
    with (BRANCH / "latency.csv").open() as file:
        price = next(row for row in csv.DictReader(file) if row["model"] == model and row["batch"] == "1")
    kld = [column(scores, "kld", name).mean() for name in (model, "teachers")]
    assert cells(pages[0], model) == [
        nll(scores, model),
        difference(scores, model, "all") if student and model != "all" else "",
        f"{column(scores, 'dee', model).mean():.2f}",
        f"{100 * kld[0] / kld[1]:.0f} %",
        f"{column(scores, 'voice', model).mean():.3f}" if student else "",
        f"{float(price['milliseconds']):.3f}",
        f"{int(price['bytes']) / 1000:,.0f}",
    ]


@pytest.mark.parametrize(
    "model",
    ["kd", "kd-long", "kd-unlabelled", "ods", "ods-long", "ods-unlabelled", "teachers", "best teacher"],
)
def test_a_row_of_images_without_labels_is_what_the_kept_scores_say(pages, model):
    scores, sets = UNLABELLED / "scores.csv", UNLABELLED / "sets.csv"
    coverage = column(sets, "coverage", model, **SETS_AT_90)
    without = model.replace("unlabelled", "long")
    assert cells(pages[1], model) == [
        nll(scores, model),
        difference(scores, model, without) if model.endswith("unlabelled") else "",
        f"{100 * (1 - column(scores, 'acc', model).mean()):.1f} %",
        f"{100 * column(scores, 'error_80', model).mean():.1f} %",
        f"{100 * coverage.mean():.1f} %",
        f"{column(sets, 'size', model, **SETS_AT_90).mean():.2f}",
    ]
    assert (abs(coverage - 0.9) < 0.015).all()


@pytest.mark.parametrize(("one", "other"), [("ods-long", "kd-long"), ("ods-unlabelled", "kd-unlabelled")])
def test_differences_in_the_text_are_what_the_kept_scores_say(pages, one, other):
    assert difference(UNLABELLED / "scores.csv", one, other) in " ".join(pages[1].split())


def test_disagreement_on_unlabelled_images_is_as_kept(pages):
    with (UNLABELLED / "unlabelled.csv").open() as file:
        (row,) = csv.DictReader(file)
    words = f"{float(row['kld']):.3f} on the unlabelled images, {float(row['valid_kld']):.3f} on validation"
    assert words in " ".join(pages[1].split())


@pytest.mark.parametrize(
    "model", ["best teacher", "teachers", "kd-long", "ods-long", "kd-unlabelled", "ods-unlabelled"]
)
def test_a_row_of_selective_prediction_is_what_the_kept_scores_say(model):
    def mean(name: str) -> float:
        return column(UNLABELLED / "scores.csv", name, model).mean()

    shares = [1 - mean("acc"), mean("error_90"), mean("error_80"), mean("coverage_5")]
    areas = [f"{mean('aurc'):.4f}", f"{mean('excess_aurc'):.4f}", f"{mean('error_auroc'):.3f}"]
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    assert cells(page, model) == [*(f"{100 * each:.1f} %" for each in shares), *areas]


@pytest.mark.parametrize("model", ["best teacher", "teachers", "mean", "mean-ods", "kd", "ods-3"])
def test_a_row_of_the_example_of_own_networks_is_what_the_kept_scores_say(model):
    scores = DOCS / "results" / "own" / "scores.csv"

    def mean(name: str) -> float:
        return column(scores, name, model).mean()

    page = (DOCS / "own.md").read_text(encoding="utf-8")
    assert cells(page, model) == [
        mean_and_spread(scores, "nll", model),
        f"{100 * mean('acc'):.1f} %",
        mean_and_spread(scores, "error_auroc", model),
        f"{100 * mean('error_80'):.1f} %",
        f"{mean('kld'):.3f}" if mean("kld") else "",
    ]


def test_the_chosen_student_of_the_example_beats_the_best_network_in_every_seed():
    scores = DOCS / "results" / "own" / "scores.csv"
    valid = {"split": "valid", "calibration": "calibrated"}
    methods = ("mean", "mean-ods", "kd", "ods-3")
    assert min(methods, key=lambda name: column(scores, "nll", name, **valid).mean()) == "ods-3"
    for name, sign in (("nll", -1), ("error_auroc", 1), ("error_80", -1)):
        student, network = (column(scores, name, model) for model in ("ods-3", "best teacher"))
        assert (sign * student > sign * network).all()
    apart = column(scores, "nll", "ods-3") - column(scores, "nll", "mean")
    words = f"{apart.mean():+.3f} with a 95 % interval of ±{half_interval(apart):.3f}"
    assert words in " ".join((DOCS / "own.md").read_text(encoding="utf-8").split())
