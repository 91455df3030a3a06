from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from polyphony.data import Split
from polyphony.recipe import Recipe, RecipeError, read_recipe
from polyphony.recipe.points import plan_sweep
from polyphony.runs.store import StoreError
from polyphony.study import study as of_study
from polyphony.study.provenance import open_study
from polyphony.study.run import Upto, run_study
from polyphony.study.study import Study
from polyphony.sweep.run import Sweep, SweepOutcome, run_sweep
from polyphony.training.tally import DivergedError

GRID = {"alpha": "0.5,1", "temperature": "1,4"}
POINTS = ("a0.5-t1-s24_255", "a0.5-t4-s24_255", "a1-t1-s24_255", "a1-t4-s24_255")
HALF, ITS_POINTS = GRID | {"temperature": "1"}, POINTS[::2]  # where more points would be the same again

Tiny = Callable[..., Sweep]


@pytest.fixture(scope="module")
def tiny(tiny_recipe: Callable[..., Recipe]) -> Tiny:
    """A sweep of the tiny study, over GRID unless other values are given."""

    def make(folder: Path, *overrides: str, method: str = "kd-ods", **texts: str) -> Sweep:
        return Sweep(plan_sweep(tiny_recipe(*overrides), method, texts or GRID), folder)

    return make


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(
    tiny: Tiny, sweep_through: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Sweep, SweepOutcome, list[str]]:
    """A finished grid that nobody may change."""
    sweep = tiny(tmp_path_factory.mktemp("swept") / "digits-sweep")
    return sweep, *sweep_through(sweep)


# What comes out


def test_every_point_and_seed_is_a_student_and_a_row(swept):
    sweep, outcome, jobs = swept
    assert jobs[:2] == ["teacher 0", "teacher 1"]  # and none for a DEE curve, which a sweep does not draw
    assert jobs[2:10] == [f"{name}, seed {seed}" for name in POINTS for seed in (0, 1)]
    assert (outcome.ran, outcome.skipped) == (len(jobs), 0) == (2 + 8 + 9, 0)
    assert (sweep.folder / "sweep.csv").read_text().splitlines()[0] == (
        "model,seed,alpha,temperature,step_size,calibration,acc,nll,bs,ece,kld"
    )
    rows = [(r["model"], r["seed"], r["calibration"]) for r in rows_of(sweep.folder)]
    assert rows == list(itertools.product(POINTS, "01", ("standard", "calibrated")))
    first = rows_of(sweep.folder)[0]
    assert (float(first["alpha"]), float(first["temperature"]), float(first["step_size"])) == (
        0.5,
        1,
        24 / 255,
    )


def test_the_scores_are_those_of_a_naive_loop_over_the_saved_logits(swept):
    sweep, _, _ = swept
    for row in rows_of(sweep.folder):
        saved = load_file(sweep.folder / "predictions" / row["model"] / row["seed"] / "valid.safetensors")
        members = log_softmax(saved["logits"].astype(np.float64), axis=-1)
        mean, labels = logsumexp(members, axis=0) - np.log(2), saved["labels"]

        def nll(inverse: float, mean: np.ndarray = mean, labels: np.ndarray = labels) -> float:
            return float(-log_softmax(inverse * mean, axis=-1)[np.arange(60), labels].mean())

        if row["calibration"] == "calibrated":
            best = minimize_scalar(lambda log: nll(np.exp(log)), bounds=(-12, 5), method="bounded")
            assert float(row["nll"]) == pytest.approx(best.fun, abs=1e-5)
        else:
            assert float(row["nll"]) == pytest.approx(nll(1.0))
        assert float(row["acc"]) == pytest.approx((mean.argmax(-1) == labels).mean())
        p = np.exp(members)
        klds = [(p[j] * (members[j] - members[1 - j])).sum(-1).mean() for j in (0, 1)]
        assert float(row["kld"]) == pytest.approx(np.mean(klds), rel=1e-5)


def test_a_point_is_the_student_that_a_study_with_its_settings_trains(swept, run, tmp_path):
    settings = ("methods={mine={perturb='ods', alpha=1.0, temperature=1.0}}", "seeds=[1]")
    run(tmp_path / "run", *settings, upto=Upto.DISTILL)
    mine = tmp_path / "run" / "students" / "mine" / "1" / "weights.safetensors"
    theirs = swept[0].folder / "students" / "a1-t1-s24_255" / "1" / "weights.safetensors"
    assert mine.read_bytes() == theirs.read_bytes()


def test_what_was_swept_is_written_down(swept):
    said = json.loads((swept[0].folder / "sweep.json").read_text())
    assert said["recipe"] == "digits"
    assert said["method"] == "kd-ods"
    assert said["settings"] == {"perturb": "ods"}
    assert said["own"] == {"alpha": 0.9, "temperature": 4.0, "step_size": 24 / 255}
    assert said["values"] == {"alpha": [0.5, 1.0], "temperature": [1.0, 4.0], "step_size": [24 / 255]}
    recipe = json.loads((swept[0].folder / "recipe.json").read_text())["recipe"]
    assert list(recipe["methods"]) == list(POINTS)


# The test images


class Forbidden(Split):
    """A split that may be counted and named, but whose images and labels may not be seen."""

    def __init__(self, split: Split) -> None:
        object.__setattr__(self, "fingerprint", split.fingerprint)  # recipe.json says which images they are

    def __getattribute__(self, name: str) -> Any:
        if name in ("images", "labels"):
            raise AssertionError("a sweep looked at test images")
        return super().__getattribute__(name)


def test_the_test_images_stay_unseen(swept, tiny, sweep_through, tmp_path, monkeypatch):
    sweep = tiny(tmp_path / "digits-sweep", **HALF)
    splits = sweep.study([sweep.plan.own]).data()
    unseen = replace(splits, test=Forbidden(splits.test))
    with pytest.raises(AssertionError, match="looked at test images"):
        unseen.test.images  # noqa: B018
    monkeypatch.setattr(of_study, "load_splits", lambda data, root: unseen)
    outcome, _ = sweep_through(sweep)
    assert outcome.scores == [row for row in swept[1].scores if row.model in ITS_POINTS]
    saved = {path.name for path in sweep.folder.rglob("*.safetensors")}
    assert saved == {"weights.safetensors", "valid.safetensors"}
    assert not (sweep.folder / "scores.csv").exists()


# Done, half done, changed


def test_a_second_call_does_nothing(swept, sweep_through):
    sweep, outcome, _ = swept
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*.safetensors")}
    again, jobs = sweep_through(sweep)
    assert jobs == []
    assert (again.ran, again.skipped) == (0, outcome.ran)
    assert again.scores == outcome.scores
    assert {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*.safetensors")} == before


def test_a_sweep_that_was_interrupted_ends_as_one_that_was_not(swept, tiny, sweep_through, files, tmp_path):
    sweep, done = tiny(tmp_path / "digits-sweep"), 0
    for more in (1, 4, 7):  # amid teachers, students and predictions
        with pytest.raises(KeyboardInterrupt):
            sweep_through(sweep, more)
        assert not (sweep.folder / "sweep.csv").exists()
        done += more
    _, jobs = sweep_through(sweep)
    assert jobs == swept[2][done:]
    assert files(sweep.folder) == files(swept[0].folder)


def test_more_values_train_only_the_points_that_are_new(tiny, sweep_through, tmp_path):
    sweep_through(tiny(tmp_path / "run", "seeds=[0]", alpha="0.5,1", temperature="1"))
    outcome, jobs = sweep_through(tiny(tmp_path / "run", "seeds=[0]", alpha="0.5,0.9,1", temperature="1"))
    new = "a0.9-t1-s24_255"
    assert jobs == [f"{new}, seed 0", f"predict {new}, seed 0, on valid"]
    assert {row.model for row in outcome.scores} == {"a0.5-t1-s24_255", new, "a1-t1-s24_255"}
    fewer, jobs = sweep_through(tiny(tmp_path / "run", "seeds=[0]", alpha="0.5", temperature="1"))
    assert jobs == []
    assert {row["model"] for row in rows_of(tmp_path / "run")} == {"a0.5-t1-s24_255"}
    assert len(fewer.scores) == 2


def test_trainings_of_a_study_beside_it_are_taken_over(tiny, sweep_through, run, tmp_path):
    run(tmp_path / "digits", "methods={mine={perturb='ods', alpha=1.0}}", upto=Upto.DISTILL)
    outcome, jobs = sweep_through(tiny(tmp_path / "digits-sweep", alpha="0.5,1"))
    assert outcome.adopted == 2 + 2
    assert [job for job in jobs if not job.startswith("predict")] == [
        f"a0.5-t4-s24_255, seed {seed}" for seed in (0, 1)
    ]


def test_another_recipe_is_refused_and_what_is_there_stays(swept, tiny, sweep_through, files, tmp_path):
    folder = tmp_path / "run"
    sweep_through(tiny(folder, "seeds=[0]", alpha="1"))
    before = files(folder)
    with pytest.raises(StoreError, match=r"schedule\.epochs \(2, now 1\)"):
        sweep_through(tiny(folder, "seeds=[0]", "student.epochs=1", alpha="1"))
    assert files(folder) == before
    outcome, jobs = sweep_through(tiny(folder, "seeds=[0]", "student.epochs=1", alpha="1"), redo=True)
    assert [job for job in jobs if job.startswith("a1")] == ["a1-t4-s24_255, seed 0"]
    assert len(outcome.scores) == 2


def test_a_batch_larger_than_the_data_leaves_no_folder(tiny, sweep_through, tmp_path):
    with pytest.raises(RecipeError, match="a batch of 51 is larger"):
        sweep_through(tiny(tmp_path / "run", "student.batch=51"))
    assert list(tmp_path.iterdir()) == []


# Trainings that fail


def test_a_point_that_diverges_is_left_out_and_named_and_tried_again(
    swept, tiny, sweep_through, tmp_path, diverging
):
    fails, works = ITS_POINTS
    diverging(fails)
    first, jobs = sweep_through(tiny(tmp_path / "run", **HALF))
    assert [point.name for point in first.diverged] == [fails]
    assert first.scores == [row for row in swept[1].scores if row.model == works]
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())["recipe"]
    assert set(recipe["methods"]) == set(ITS_POINTS)
    lost = f"{fails}, seed 0"
    assert (first.ran, first.skipped) == (2 + 2 + 3, 0)
    assert len({*jobs} - {lost}) == first.ran
    again, jobs = sweep_through(tiny(tmp_path / "run", **HALF))
    assert set(jobs) == {lost}  # and nothing else is
    assert (again.ran, again.skipped) == (0, first.ran)


def test_where_all_points_diverge_that_is_said(tiny, sweep_through, tmp_path, diverging):
    diverging(*POINTS)
    with pytest.raises(DivergedError, match="every point of"):
        sweep_through(tiny(tmp_path / "run"))
    assert not (tmp_path / "run" / "sweep.csv").exists()


def test_a_teacher_that_diverges_ends_the_sweep_at_once(tiny, sweep_through, tmp_path, monkeypatch):
    train = mock.Mock(side_effect=DivergedError("the loss is not a number"))
    monkeypatch.setattr("polyphony.study.trainings.TrainTeacher.run", train)
    with pytest.raises(DivergedError, match="the loss is not a number"):
        sweep_through(tiny(tmp_path / "run"))
    train.assert_called_once()


def test_a_method_that_takes_no_step_is_swept_without_one(tiny, sweep_through, tmp_path):
    outcome, _ = sweep_through(tiny(tmp_path / "run", "seeds=[0]", method="kd", alpha="0.5,1"))
    assert [row.model for row in outcome.scores[::2]] == ["a0.5-t4", "a1-t4"]
    assert {row["step_size"] for row in rows_of(tmp_path / "run")} == {""}


def test_a_sweeps_folder_is_refused_by_whatever_would_look_at_test_images(here, quiet, tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    study = Study(read_recipe("digits"), tmp_path)
    for attempt in (lambda: open_study(tmp_path, None, "cpu"), lambda: run_study(study, here, quiet)):
        with pytest.raises(StoreError, match="must not use test images"):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_a_studys_folder_is_refused_by_a_sweep(tiny, here, quiet, tmp_path):
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(StoreError, match="holds a study, and a sweep needs a folder of its own"):
        run_sweep(tiny(tmp_path), here, quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]
