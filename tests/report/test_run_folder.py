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


def test_a_folder_that_is_not_an_evaluated_run_raises_one_sentence(small_run: Path):
    with pytest.raises(StoreError, match=r"predictions/recipe\.json is not there"):
        Run.open(small_run / "predictions")
    (small_run / "scores.csv").unlink()
    with pytest.raises(StoreError, match=r"small/scores\.csv is not there"):
        Run.open(small_run)


def test_scores_with_other_columns_raise_one_sentence(small_run: Path):
    (small_run / "scores.csv").write_text("model,seed\nkd,0\n")
    with pytest.raises(StoreError, match=r"is damaged \(it has no column"):
        Run.open(small_run)


def test_scores_without_students_raise_one_sentence(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    (small_run / "scores.csv").write_text(
        "".join(line for line in lines if not line.startswith(("kd", "scr")))
    )
    with pytest.raises(StoreError, match="no scores of students and teachers"):
        Run.open(small_run)


def test_a_damaged_prediction_raises_one_sentence(small_run: Path):
    path = small_run / "predictions" / "kd" / "0" / "test.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"test\.safetensors is damaged"):
        Run.open(small_run).predictions  # noqa: B018 (read when it is asked for)


def test_scores_of_a_method_that_the_recipe_lacks_raise_one_sentence(small_run: Path):
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
    log_probs = run.log_probs("kd", "calibrated")
    assert log_probs is not None
    np.testing.assert_allclose(
        log_probs.numpy()[len(mean) :], log_softmax(mean / float(saved), axis=-1), rtol=1e-9
    )


def test_a_log_that_ends_in_half_a_line_is_read_up_to_it(small_run: Path):
    path = small_run / "students" / "kd" / "0" / "log.jsonl"
    path.write_text(path.read_text() + '{"epoch": 4, "valid')
    assert [len(log) for log in Run.open(small_run).logs("kd")] == [4, 4]


def test_a_missing_dee_gives_no_mean(small_run: Path, rescored):
    run = Run.open(rescored(small_run, lambda row: {"dee": ""}))
    assert math.isnan(run.mean("kd-ods", "dee").mean)
    assert run.dee("kd-ods") is None


def test_dee_is_that_of_the_mean_nll_so_that_models_rank_alike_by_both(small_run: Path):
    run = Run.open(small_run)
    curve = [math.log(4) * 0.75**n for n in range(6)]
    for model in run.models:
        nll = np.mean([row.nll for row in run.scored(model)])
        size = next(n for n in range(6) if curve[n] <= nll)
        expected = size - 1 + (curve[size - 1] - nll) / (curve[size - 1] - curve[size])
        dee = run.dee(model)
        assert dee is not None
        assert dee.value == pytest.approx(expected)
        seeds = [row.dee for row in run.scored(model)]
        assert (dee.least, dee.largest) == (min(seeds), max(seeds))
    by_nll = sorted(run.models, key=lambda model: run.mean(model, "nll").mean)
    assert by_nll == sorted(run.models, key=lambda model: -run.dee(model).value)


def test_the_best_teacher_is_one_of_the_teachers(small_run: Path):
    run = Run.open(small_run)
    assert (run.models[1], run.baseline, run.members_of("best teacher")) == ("best teacher",) * 2 + (1,)
    saved = load_file(small_run / "predictions" / TEACHERS / "test.safetensors")["logits"]
    predictions = run.pooled("best teacher", "test")
    assert predictions is not None
    np.testing.assert_array_equal(predictions.logits.numpy(), saved[1:2])
    assert run.seconds("best teacher") == [20.0]


def test_an_older_run_without_a_best_teacher_opens(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    (small_run / "scores.csv").write_text("".join(line for line in lines if "best teacher" not in line))
    run = Run.open(small_run)
    assert run.baseline is None
    assert "best teacher" not in run.models


def test_how_far_members_follow_is_a_share_of_the_teachers_mean_kld(small_run: Path, rescored):
    run = Run.open(small_run)
    most = run.scored(TEACHERS)[0].kld
    assert run.follows("kd") == pytest.approx(0.2 / most)  # the fixture's voice
    assert run.follows("scratch") is None  # it had no teachers
    assert run.follows(TEACHERS) is run.follows("best teacher") is None


def test_diversity_of_a_student_worse_than_one_teacher_is_not_praised(small_run: Path, rescored):
    run = Run.open(small_run)
    share = np.mean([row.kld for row in run.scored("kd")]) / run.scored(TEACHERS)[0].kld
    assert run.diversity_share("kd") == pytest.approx(share)
    worse = rescored(small_run, lambda row: {"nll": 1.3, "dee": 0.3} if row["model"] == "kd" else {})
    assert Run.open(worse).diversity_share("kd") is None


def test_prices_are_those_of_the_smallest_batch_by_default(full_run: Path):
    run = Run.open(full_run)
    assert (run.price("kd").batch, run.price("kd", 64).batch, run.price("kd", 7)) == (1, 64, None)
    assert run.times_one_teacher("kd") == pytest.approx(1.2)
