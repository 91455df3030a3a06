from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from polyphony.report import Run
from polyphony.scores import TEACHERS
from polyphony.store import StoreError


def test_a_folder_that_is_no_evaluated_run_is_one_sentence(small_run: Path):
    with pytest.raises(StoreError, match=r"is not a run folder: it has no recipe\.json"):
        Run.open(small_run / "predictions")
    (small_run / "scores.csv").unlink()
    with pytest.raises(StoreError, match=r"has no scores\.csv .* 'polyphony evaluate .*small' first"):
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
    with pytest.raises(StoreError, match="no student and teachers"):
        Run.open(small_run)


def test_a_damaged_prediction_is_one_sentence(small_run: Path):
    path = small_run / "predictions" / "kd" / "0" / "test.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"test\.safetensors is damaged .* delete it"):
        Run.open(small_run).predictions("kd", 0, "test")


def test_methods_keep_the_recipes_order_and_only_scored_ones_count(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    kept = [line for line in reversed(lines[1:]) if not line.startswith("kd-gaussian")]
    (small_run / "scores.csv").write_text("".join([lines[0], *kept]))
    run = Run.open(small_run)
    assert run.methods == ["scratch", "kd", "kd-ods"]
    assert run.methods_with("ods", None) == ["kd-ods", "scratch"]


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


def test_calibrated_predictions_are_at_the_temperature_best_on_validation(small_run: Path):
    run = Run.open(small_run)
    valid = load_file(small_run / "predictions" / "kd" / "1" / "valid.safetensors")
    logits = torch.tensor(valid["logits"], dtype=torch.float64)
    mean = logits.softmax(-1).mean(0).log()
    labels = torch.tensor(valid["labels"])
    grid = torch.linspace(0.2, 5, 4801, dtype=torch.float64)
    losses = [torch.nn.functional.cross_entropy(mean / t, labels) for t in grid]
    found = run.temperature("kd", 1)
    assert found == pytest.approx(float(grid[int(torch.stack(losses).argmin())]), abs=2e-3)


def test_a_log_that_ends_in_half_a_line_is_read_up_to_it(small_run: Path):
    path = small_run / "students" / "kd" / "0" / "log.jsonl"
    path.write_text(path.read_text() + '{"epoch": 4, "valid')
    assert [len(log) for log in Run.open(small_run).logs("kd")] == [4, 4]


def test_a_missing_dee_makes_no_mean(small_run: Path):
    rows = (small_run / "scores.csv").read_text().replace(",3.0,", ",,")
    (small_run / "scores.csv").write_text(rows)
    assert math.isnan(Run.open(small_run).mean("kd-ods", "dee").mean)
