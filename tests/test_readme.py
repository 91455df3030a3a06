"""What the README shows works as it stands there."""

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

from polyphony import __version__

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_gives_logits_of_every_member():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    data, logits = names["data"], names["logits"]
    assert logits.shape == (4, len(data.test), len(data.classes))
    assert logits.isfinite().all()
    assert not (logits[0] == logits[1]).any(), "members that are one and the same"


def test_the_mistake_is_answered_as_shown_by_a_process_that_ends_with_its_code(polyphony, tmp_path):
    (said,) = re.findall(r"^(polyphony: .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    done = polyphony("study", "digits", "--out", "run", "--set", "student.alfa=1")
    assert (done.returncode, done.stdout) == (2, f"Polyphony {__version__}: digits\n")
    assert done.stderr == f"{said}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"\]\(([^):]+)\)", README.read_text(encoding="utf-8"))))
)
def test_what_the_readme_points_to_is_there(path):
    assert (README.parent / path).exists()


@pytest.mark.parametrize(
    "model", ["teachers", "best teacher", "kd", "kd-warm", "kd-noise", "kd-ods", "mean", "mean-ods"]
)
def test_the_table_of_the_demo_is_what_its_kept_scores_say(model):
    with (README.parent / "docs" / "results" / "demo" / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["split"]) == (model, "test")]
    calibrated = [row for row in rows if row["calibration"] == "calibrated"]
    nll, acc, ece = (fmean(float(row[name]) for row in calibrated) for name in ("nll", "acc", "ece"))
    shown = "4 teachers" if model == "teachers" else model
    text = README.read_text(encoding="utf-8")
    assert re.search(rf"^ {shown} +[\d.]+ +{nll:.3f} .* {100 * acc:.2f} +{ece:.3f} ", text, re.MULTILINE)


@pytest.mark.parametrize(
    "model",
    [
        "teachers",
        "best teacher",
        "mean-ods",
        "hydra-ods",
        "front-2-ods",
        "be-t4-clean",
        "separate-small-clean",
    ],
)
def test_the_table_of_costs_is_what_the_kept_files_say(model):
    kept = README.parent / "docs" / "results" / "students" / "fashion"
    with (kept / "scores.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if (r["split"], r["calibration"]) == ("test", "calibrated")]
    with (kept / "analysis" / "latency.csv").open() as file:
        (price,) = (row for row in csv.DictReader(file) if row["model"] == model)
    nll, kld = (fmean(float(row[name]) for row in rows if row["model"] == model) for name in ("nll", "kld"))
    (teachers,) = (float(row["kld"]) for row in rows if row["model"] == "teachers")
    share = f"{100 * kld / teachers:.0f} % " if kld else ""
    line = (
        f" | {int(price['params']) / 1000:.0f} k | {int(price['bytes']) / 1000:,.0f} kB"
        f" | {float(price['milliseconds']):.3f} | {share}| {nll:.3f} |"
    )
    name = {"teachers": "| four teachers", "best teacher": "| best teacher"}.get(model, f"(`{model}`)")
    assert name + line in README.read_text(encoding="utf-8")
