from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import log_softmax, logsumexp

from polyphony.report import Run
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import StoreError


def test_a_folder_that_is_no_evaluated_run_is_one_sentence(small_run: Path):
    with pytest.raises(StoreError, match=r"predictions/recipe\.json is not there"):
        Run.open(small_run / "predictions")
    (small_run / "scores.csv").unlink()
    with pytest.raises(StoreError, match=r"small/scores\.csv is not there"):
        Run.open(small_run)


def test_scores_of_another_shape_are_one_sentence(small_run: Path):
    (small_run / "scores.csv").write_text("model,seed\nkd,0\n")
    with pytest.raises(StoreError, match=r"is damaged \(it has no column"):
        Run.open(small_run)


def test_scores_without_students_are_one_sentence(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    (small_run / "scores.csv").write_text(
        "".join(line for line in lines if not line.startswith(("kd", "scr")))
    )
    with pytest.raises(StoreError, match="no scores of students and teachers"):
        Run.open(small_run)


def test_a_damaged_prediction_is_one_sentence(small_run: Path):
    path = small_run / "predictions" / "kd" / "0" / "test.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"test\.safetensors is damaged"):
        Run.open(small_run).predictions  # noqa: B018 (read when it is asked for)


def test_scores_of_a_method_that_the_recipe_lacks_are_one_sentence(small_run: Path):
    path = small_run / "scores.csv"
    path.write_text(path.read_text().replace("kd-ods", "kd-other"))
    with pytest.raises(StoreError, match=r"scores\.csv is damaged \(recipe\.json has no method 'kd-other'\)"):
        Run.open(small_run)


def test_methods_keep_the_recipes_order_and_only_scored_ones_count(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    kept = [line for line in reversed(lines[1:]) if not line.startswith("kd-gaussian")]
    (small_run / "scores.csv").write_text("".join([lines[0], *kept]))
    run = Run.open(small_run)
    assert run.methods == ["scratch", "kd", "kd-ods"]
    assert [run.methods_with(kind) for kind in ("ods", None)] == [["kd-ods"], ["scratch"]]


def test_the_ensemble_is_the_first_members_and_seeds_are_pooled(small_run: Path):
    run = Run.open(small_run)
    saved = load_file(small_run / "predictions" / TEACHERS / "test.safetensors")["logits"]
    teachers = run.pooled(TEACHERS, "test")
    assert teachers is not None
    assert len(saved) == 5
    np.testing.assert_array_equal(teachers.logits.numpy(), saved[:3])
    pooled = run.pooled("kd", "test")
    assert pooled is not None
    parts = [load_file(small_run / "predictions" / "kd" / seed / "test.safetensors") for seed in "01"]
    np.testing.assert_array_equal(pooled.logits.numpy(), np.concatenate([p["logits"] for p in parts], axis=1))
    np.testing.assert_array_equal(pooled.labels.numpy(), np.concatenate([p["labels"] for p in parts]))


def test_calibrated_predictions_are_at_the_temperature_that_was_saved(small_run: Path):
    run = Run.open(small_run)
    with (small_run / "analysis" / "temperatures.csv").open() as file:
        (saved,) = (r["temperature"] for r in csv.DictReader(file) if (r["model"], r["seed"]) == ("kd", "1"))
    logits = load_file(small_run / "predictions" / "kd" / "1" / "test.safetensors")["logits"]
    mean = logsumexp(log_softmax(logits.astype(np.float64), axis=-1), axis=0) - np.log(3)
    found = run.log_probs("kd", "calibrated")
    assert found is not None
    np.testing.assert_allclose(
        found.numpy()[len(mean) :], log_softmax(mean / float(saved), axis=-1), rtol=1e-9
    )


def test_a_log_that_ends_in_half_a_line_is_read_up_to_it(small_run: Path):
    path = small_run / "students" / "kd" / "0" / "log.jsonl"
    path.write_text(path.read_text() + '{"epoch": 4, "valid')
    assert [len(log) for log in Run.open(small_run).logs("kd")] == [4, 4]


def test_a_missing_dee_makes_no_mean(small_run: Path):
    rows = (small_run / "scores.csv").read_text().replace(",3.0,", ",,")
    (small_run / "scores.csv").write_text(rows)
    assert math.isnan(Run.open(small_run).mean("kd-ods", "dee").mean)
