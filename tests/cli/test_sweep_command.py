from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest


@pytest.fixture
def sweep(say: Callable[..., Any], tiny_digits: tuple[str, ...]) -> Callable[..., Any]:
    """Say `sweep digits ARGUMENTS`, with the recipe made tiny."""
    settings = [part for override in tiny_digits for part in ("--set", override)]
    return lambda *arguments: say("sweep", "digits", "--device", "cpu", *settings, *arguments)


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on no page is written, which takes the longest."""
    return lambda: monkeypatch.setattr("polyphony.report.write_report", lambda *_: "as before")


def test_a_sweep_prints_the_points_best_first_and_a_line_to_paste_and_writes_a_page(sweep, tmp_path, no_page):
    arguments = ("--method", "kd-ods", "--alpha", "0.5,1", "--step-size", "8/255,24/255", "--seeds", "0,1")
    arguments += ("--workers", "1")
    first = sweep(*arguments)
    assert first.code == 0, first.err
    assert "2 teachers, then 4 points of kd-ods, 2 seeds each." in first.out
    assert "About" in first.out
    folder = tmp_path / "runs" / "digits-sweep"
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2 * 2
    means: dict[str, float] = {}
    for row in rows:
        if row["calibration"] == "calibrated":
            means[row["model"]] = means.get(row["model"], 0) + float(row["nll"]) / 2
    table = [line for line in first.out.splitlines() if line.startswith(" ")]
    printed = [line.split() for line in table if "±" in line and "/255" in line]
    best_first = sorted(means, key=lambda name: means[name])
    assert [f"a{p[0]}-t{p[1]}-s{p[2].replace('/', '_')}" for p in printed] == best_first
    assert float(printed[0][3]) == pytest.approx(means[best_first[0]], abs=6e-4)
    alpha, step = printed[0][0], printed[0][2]
    line = f'kd-ods = {{ perturb = "ods", alpha = {alpha}, temperature = 4, step_size = "{step}" }}'
    assert line in first.out
    assert "one standard deviation of it" in first.out
    assert (folder / "report.html").read_text().startswith("<!doctype html>")

    before = (folder / "sweep.csv").read_bytes()
    no_page()
    second = sweep(*arguments)
    assert second.code == 0, second.err
    assert "Nothing to do: all 19 jobs of runs/digits-sweep are done and unchanged." in second.out
    assert line in second.out
    assert (folder / "sweep.csv").read_bytes() == before


def test_trainings_that_were_taken_over_are_not_said_to_have_been_done_before(sweep, no_page):
    no_page()
    first = sweep("--method", "kd-ods", "--alpha", "1", "--seeds", "0", "--workers", "1", "--out", "runs/one")
    assert first.code == 0, first.err
    result = sweep(
        "--method", "kd-ods", "--alpha", "1", "--seeds", "0", "--workers", "1", "--out", "runs/two"
    )
    assert result.code == 0, result.err
    assert "Taken over from other runs in runs: 3 trainings." in result.out  # two teachers, one student
    assert "done before" not in result.out
    assert "Nothing to do" not in result.out
    more = sweep(
        "--method", "kd-ods", "--alpha", "0.5,1", "--seeds", "0", "--workers", "1", "--out", "runs/two"
    )
    assert "2 jobs were run, 5 were done before." in more.out


@pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None,
    reason="optuna is not installed: pip install '.[sweep]'",
)
def test_a_search_from_the_command_line(sweep, tmp_path):
    result = sweep("--alpha", "0.5,1", "--seeds", "0", "--trials", "3", "--out", "here", "--workers", "1")
    assert result.code == 0, result.err
    assert "Every point was trained once" in result.out
    with (tmp_path / "here" / "sweep.csv").open() as file:
        assert len({row["model"] for row in csv.DictReader(file)}) == 3
    assert (tmp_path / "here" / "optuna.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--alpha", "2"], "alpha must be less than or equal to 1, not 2"),
        (["--alpha", "-0.5"], "alpha must be greater than or equal to 0, not -0.5"),
        (["--temperature", "0"], "temperature must be greater than 0, not 0"),
        (["--step-size", "x"], "step_size must be a number or a fraction above 0"),
        (["--method", "kdods"], "did you mean 'kd-ods'?"),
        (["--method", "kd", "--step-size", "1/255"], "the method 'kd' does not use step_size"),
        (["--method", "scratch"], "has no α, temperature or step size to sweep"),
        (["--seeds", "a"], "seeds must be a valid array"),
        (["--seeds", "0,0"], "seeds must be different from each other"),
        (["--seeds", "-1"], "seeds must be greater than or equal to 0"),
        (["--trials", "0"], "trials"),
        (["--trials", "4", "--alpha", "0.5"], "a search needs a range"),
        (["--set", "student.batch=51"], "a batch of 51 is larger than the data's 50 training images"),
        (["--set", "student.alfa=1"], "did you mean 'alpha'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_swept_is_one_sentence_and_leaves_nothing(
    sweep, refused, tmp_path, arguments, sentence
):
    refused(sweep(*arguments), sentence)
    assert [path for path in tmp_path.iterdir() if path.name != ".cache"] == []


def test_a_batch_larger_than_the_memory_is_refused_before_anything_is_written(sweep, refused, tmp_path):
    with mock.patch("polyphony.study.cost.memory", return_value=10**5):
        refused(sweep("--alpha", "1", "--out", tmp_path / "run"), "a step needs at least", "smaller batch")
    assert not (tmp_path / "run").exists()
