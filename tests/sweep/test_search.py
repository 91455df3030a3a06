"""The search by optuna. What is trained is replaced by a formula where only the search is looked at."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyphony.recipe import RecipeError, read_recipe
from polyphony.recipe.points import Point, plan_sweep
from polyphony.study import study as of_study
from polyphony.study.fingerprints import fingerprints
from polyphony.sweep.run import Sweep, SweepOutcome
from polyphony.sweep.search import STARTUP, Search, check_search, repair_journal, rounded

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None,
    reason="optuna is not installed: pip install '.[sweep]'",
)
TWO_RANGES = {"alpha": "0.5,1", "temperature": "1,8"}
RANGES = TWO_RANGES | {"step_size": "1/255,64/255"}


def searching(folder: Path, *overrides: str, **texts: str) -> Search:
    """A search for settings of the shipped recipe, in which nothing is trained."""
    folder.mkdir(exist_ok=True)
    sweep = Sweep(plan_sweep(read_recipe("digits", overrides), "kd-ods", texts or RANGES), folder)
    return sweep.search(fingerprints(sweep.study([sweep.plan.own])))


def formula(point: Point) -> float:
    """Least at α = 0.7, τ = 2, η = 8/255."""
    assert isinstance(point.step_size, float)
    return (
        (point.alpha - 0.7) ** 2
        + math.log(point.temperature / 2) ** 2
        + math.log(point.step_size * 255 / 8) ** 2 / 4
    )


def go_on(search: Search, trials: int, a_round: int = 1) -> list[Point]:
    """Run a search until `trials` trials have a result; returns the new points."""
    points = []
    while (left := trials - search.completed()) > 0:
        for trial in search.ask(min(left, a_round)):
            points.append(trial.point)
            search.tell(trial, formula(trial.point))
    return points


# Which points are proposed


@needs_optuna
def test_the_recipes_own_point_comes_first_and_the_others_lie_in_the_ranges(tmp_path):
    points = go_on(searching(tmp_path), 12)
    assert points[0] == Point(0.9, 1.0, 24 / 255)
    assert len(set(points)) == 12
    for point in points:
        assert 0.5 <= point.alpha <= 1
        assert 1 <= point.temperature <= 8
        assert 1 / 255 <= point.step_size <= 64 / 255


@needs_optuna
def test_a_parameter_with_one_value_keeps_it_and_a_recipe_outside_is_not_asked(tmp_path):
    points = go_on(searching(tmp_path, alpha="0.25", temperature="5,9"), 5)
    assert {(point.alpha, point.step_size) for point in points} == {(0.25, 24 / 255)}
    assert all(5 <= point.temperature <= 9 for point in points)


@needs_optuna
def test_the_search_learns_from_what_it_is_told(tmp_path):
    points = go_on(searching(tmp_path), 40)
    blind, late = points[:STARTUP], points[-15:]
    assert sum(map(formula, late)) / len(late) < sum(map(formula, blind)) / len(blind) / 2
    assert min(map(formula, points)) < 0.05


@needs_optuna
@pytest.mark.parametrize("a_round", [1, 3])
def test_a_search_reopened_at_every_round_asks_the_same(tmp_path, a_round):
    uninterrupted = go_on(searching(tmp_path / "uninterrupted"), 12, a_round)
    pieces: list[Point] = []
    for trials in range(a_round, 13, a_round):
        pieces += go_on(searching(tmp_path / "pieces"), trials, a_round)
    assert pieces == uninterrupted


@needs_optuna
def test_what_was_asked_and_never_answered_is_asked_again(tmp_path):
    uninterrupted = go_on(searching(tmp_path / "uninterrupted"), 9, 3)
    go_on(searching(tmp_path / "killed"), 3, 3)
    lost = searching(tmp_path / "killed").ask(3)  # and nobody answers
    assert [trial.point for trial in lost] == uninterrupted[3:6]
    assert [trial.point for trial in searching(tmp_path / "killed").ask(3)] == uninterrupted[3:6]
    assert go_on(searching(tmp_path / "killed"), 9, 3) == uninterrupted[3:]


@needs_optuna
@pytest.mark.parametrize(("before", "answered"), [(0, 1), (3, 2), (9, 1)])
def test_a_search_killed_between_two_answers_of_a_round_asks_the_same(tmp_path, before, answered):
    uninterrupted = go_on(searching(tmp_path / "uninterrupted"), 15, 3)
    go_on(searching(tmp_path / "killed"), before, 3)
    search = searching(tmp_path / "killed")
    for trial in search.ask(3)[:answered]:
        search.tell(trial, formula(trial.point))
    assert go_on(searching(tmp_path / "killed"), 15, 3) == uninterrupted[before + answered :]


@needs_optuna
@pytest.mark.parametrize(("before", "asked"), [(0, 0), (3, 1), (7, 2)])
@pytest.mark.parametrize("half", [False, True])
def test_a_search_killed_while_it_asks_for_a_round_asks_the_same(tmp_path, monkeypatch, before, asked, half):
    uninterrupted, killed = searching(tmp_path / "uninterrupted"), searching(tmp_path / "killed")
    wanted = [*go_on(uninterrupted, before, 3), *go_on(uninterrupted, 15, 3)]
    go_on(killed, before, 3)
    ask, calls = Search._propose, []

    def stop(search: Search) -> None:
        if len(calls) == asked:
            if half:
                search.study.ask()  # a trial without any parameters
            raise KeyboardInterrupt
        calls.append(ask(search))

    monkeypatch.setattr(Search, "_propose", stop)
    with pytest.raises(KeyboardInterrupt):
        killed.ask(3)
    monkeypatch.setattr(Search, "_propose", ask)
    assert go_on(searching(tmp_path / "killed"), 15, 3) == wanted[before:]


@needs_optuna
def test_a_round_is_completed_by_fewer_processes_and_for_fewer_trials(tmp_path):
    uninterrupted = go_on(searching(tmp_path / "uninterrupted"), 4, 4)
    searching(tmp_path / "killed").ask(4)
    assert go_on(searching(tmp_path / "killed"), 3, 2) == uninterrupted[:3]
    assert go_on(searching(tmp_path / "killed"), 4, 2) == uninterrupted[3:]


@needs_optuna
def test_a_point_that_diverged_counts_and_is_not_a_finished_one(tmp_path):
    search = searching(tmp_path)
    (first,) = search.ask(1)
    search.tell(first, None)
    go_on(search, 8)
    assert search.completed() == 8
    assert search.diverged() == [first.point]
    assert first.point not in search.finished()
    assert len(search.finished()) == 7


@needs_optuna
def test_trainings_with_other_settings_are_another_search(tmp_path):
    go_on(searching(tmp_path), 4)
    assert searching(tmp_path).completed() == 4
    assert searching(tmp_path, "student.epochs=2").completed() == 0
    assert searching(tmp_path, "seeds=[0, 1]").completed() == 0


@needs_optuna
@pytest.mark.parametrize("split", ["train", "valid"])
def test_what_was_found_on_other_images_does_not_count(tmp_path, monkeypatch, split):
    search = searching(tmp_path)
    go_on(search, 2)
    splits = Sweep(search.plan, tmp_path).study([search.plan.own]).data()
    images = getattr(splits, split)
    changed = replace(splits, **{split: replace(images, images=255 - images.images)})
    monkeypatch.setattr(of_study, "load_splits", lambda data, root: changed)
    assert searching(tmp_path).completed() == 0
    monkeypatch.setattr(of_study, "load_splits", lambda data, root: splits)
    assert searching(tmp_path).completed() == 2


@needs_optuna
def test_what_was_found_by_another_way_of_training_does_not_count(tmp_path, monkeypatch):
    go_on(searching(tmp_path), 2)
    monkeypatch.setattr("polyphony.sweep.run.FORMAT", 0)
    assert searching(tmp_path).completed() == 0


@needs_optuna
def test_a_journal_whose_writer_was_killed_goes_on(tmp_path):
    uninterrupted = go_on(searching(tmp_path / "uninterrupted"), 8)
    go_on(searching(tmp_path / "killed"), 4)
    journal = tmp_path / "killed" / "optuna.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"ab')
    (tmp_path / "killed" / "optuna.jsonl.lock").symlink_to(journal)
    assert go_on(searching(tmp_path / "killed"), 8) == uninterrupted[4:]


def test_mending_takes_half_a_line_and_nothing_else(tmp_path):
    journal = tmp_path / "optuna.jsonl"
    repair_journal(journal)
    assert not journal.exists()
    for content, left in ((b"", b""), (b"{}\n", b"{}\n"), (b"{}\n{", b"{}\n"), (b"{", b"")):
        journal.write_bytes(content)
        repair_journal(journal)
        assert journal.read_bytes() == left


def test_mending_never_writes_lines_again_which_a_kill_would_lose(tmp_path, monkeypatch):
    journal = tmp_path / "optuna.jsonl"
    journal.write_bytes(b"{}\n{")
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: pytest.fail("the journal was emptied first"))
    repair_journal(journal)
    monkeypatch.undo()
    assert journal.read_bytes() == b"{}\n"


def test_values_are_rounded_to_what_a_person_would_write():
    assert rounded("alpha", 0.87654) == 0.877
    assert rounded("temperature", 12.3456) == 12.3
    assert rounded("step_size", 24.04 / 255) == 24 / 255
    assert rounded("step_size", 1.234 / 255) == 0.00484


# What is refused


def test_a_search_that_cannot_be_is_one_sentence(tmp_path, monkeypatch):
    def check(**texts: str) -> None:
        check_search(searching(tmp_path, **texts).plan)

    monkeypatch.setattr("polyphony.sweep.search.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install '\.\[sweep\]'"):
        check()
    monkeypatch.setattr("polyphony.sweep.search.find_spec", lambda name: name)
    with pytest.raises(RecipeError, match="a search needs a range"):
        check(alpha="0.5")
    with pytest.raises(RecipeError, match="is not a number"):
        check(step_size="1/255,match")
    check(alpha="0.5,1")


# With trainings


@pytest.fixture(scope="module")
def tiny(tiny_digits: tuple[str, ...]) -> Callable[[Path], Sweep]:
    """A sweep of the digits recipe made tiny, with trainings of one epoch."""
    recipe = read_recipe("digits", [*tiny_digits, "seeds=[0]"])
    return lambda folder: Sweep(plan_sweep(recipe, "kd-ods", TWO_RANGES), folder)


@pytest.fixture(scope="module")
def searched(
    tiny: Callable[[Path], Sweep], sweep_through: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, SweepOutcome, list[str]]:
    """A finished search that nobody may change."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    return folder, *sweep_through(tiny(folder), trials=4)


@needs_optuna
def test_the_table_has_a_row_for_every_trial_and_the_journal_their_calibrated_nll(searched, tiny):
    folder, outcome, jobs = searched
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 4
    assert rows[0]["model"] == "a0.9-t4-s24_255"
    assert outcome.ran == len(jobs) == 2 + 4 + 5
    sweep = tiny(folder)
    search = sweep.search(fingerprints(sweep.study([sweep.plan.own])))
    values = [trial.value for trial in search.study.trials]
    assert values == [float(row["nll"]) for row in rows if row["calibration"] == "calibrated"]


@needs_optuna
def test_a_second_call_does_nothing_and_a_longer_one_goes_on(searched, tiny, sweep_through, tmp_path):
    folder, outcome, jobs = searched
    again, nothing = sweep_through(tiny(folder), trials=4)
    assert nothing == []
    assert (again.ran, again.skipped, again.scores) == (0, 11, outcome.scores)
    sweep_through(tiny(tmp_path / "run"), trials=2)
    _, rest = sweep_through(tiny(tmp_path / "run"), trials=4)
    assert rest == jobs[7:]
    assert (tmp_path / "run" / "sweep.csv").read_bytes() == (folder / "sweep.csv").read_bytes()


@needs_optuna
def test_a_search_that_was_interrupted_ends_as_one_that_was_not(
    searched, tiny, sweep_through, files, tmp_path
):
    for more in (1, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            sweep_through(tiny(tmp_path / "run"), more, trials=4)
    begun = {path.name for path in (tmp_path / "run" / "students").iterdir()}
    assert len(begun) > 1
    assert begun <= json.loads((tmp_path / "run" / "recipe.json").read_text())["recipe"]["methods"].keys()
    sweep_through(tiny(tmp_path / "run"), trials=4)
    assert files(tmp_path / "run") == files(searched[0])


@needs_optuna
def test_a_trial_that_diverges_does_not_end_the_search(tiny, sweep_through, tmp_path, diverging):
    diverging("a0.9-t4-s24_255")
    outcome, _ = sweep_through(tiny(tmp_path / "run"), trials=3)
    assert [point.name for point in outcome.diverged] == ["a0.9-t4-s24_255"]
    assert len(outcome.scores) == 2 * 2
    again, jobs = sweep_through(tiny(tmp_path / "run"), trials=3)
    assert jobs == []
    assert again.diverged == outcome.diverged
