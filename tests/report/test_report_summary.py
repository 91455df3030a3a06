from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyphony.report import Run
from polyphony.report.figures.quality import dee_reading
from polyphony.report.paper import PaperExperiments
from polyphony.report.paper_tables import paper_tables
from polyphony.report.provenance import one_line
from polyphony.report.score_tables import clear_winner, score_table
from polyphony.report.tables import Cell


def seeds(draws: dict[str, list[float]]) -> dict[str, dict[int | None, float]]:
    return {name: dict(enumerate(values)) for name, values in draws.items()}


def test_the_best_is_bold_only_where_no_paired_difference_may_be_zero():
    apart = seeds({"a": [1.0, 1.1], "b": [2.0, 2.11], "c": [3.0, 3.1]})
    assert clear_winner(apart, larger=True) == "c"
    assert clear_winner(apart, larger=False) == "a"
    near = seeds({"a": [1.0, 2.0], "b": [1.5, 2.6]})
    assert clear_winner(near, larger=True) is None
    holes = seeds({"a": [0.50, 0.51, 0.10], "b": [0.40, 0.409]})
    assert clear_winner(holes, larger=False) == "b"


def test_nothing_is_bold_with_one_seed_or_one_method():
    assert clear_winner(seeds({"a": [1.0], "b": [2.0]}), larger=True) is None
    assert clear_winner(seeds({"a": [1.0, 1.1]}), larger=True) is None
    assert clear_winner(seeds({"a": [math.inf, 1.0], "b": [2.0, 2.1]}), larger=True) is None


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=2, max_size=5))
def test_a_winner_beats_every_other_beyond_the_interval_of_the_difference(draws: list[list[float]]):
    winner = clear_winner(seeds({str(place): each for place, each in enumerate(draws)}), larger=True)
    for place, each in enumerate(draws) if winner is not None else ():
        if place != int(winner):
            apart = np.subtract(draws[int(winner)], each)
            assert np.mean(apart) > 4.302652 * np.std(apart, ddof=1) / math.sqrt(3) - 1e-9  # t of two degrees


@pytest.fixture
def compared(small_run: Path, monkeypatch) -> Callable[..., Run]:
    """The small run, which counts as some of the paper's experiments."""

    def run(*experiments: str) -> Run:
        paper = PaperExperiments(experiments, "")
        monkeypatch.setattr("polyphony.report.paper_tables.experiments_of", lambda recipe: paper)
        return Run.open(small_run)

    return run


def test_the_table_has_the_scores_of_the_file(small_run: Path):
    run = Run.open(small_run)
    table = score_table(run, "calibrated")
    assert "n = 2 seeds" in table.caption
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    values = [s.nll for s in run.scores if (s.model, s.split, s.calibration) == ("kd", "test", "calibrated")]
    assert rows["kd"][0] == "1,100"
    assert rows["kd"][2] == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    dee = {row[0].text: row[6] for row in table.rows}["kd"]
    assert (dee.text, dee.range) == (run.dee("kd").text, run.dee("kd").seeds)
    assert list(rows)[:2] == ["teachers (3 networks)", "best teacher"]
    assert [rows[name][0] for name in list(rows)[:2]] == ["3,000", "1,000"]


def test_the_papers_numbers_stand_beside_those_of_the_same_method(compared):
    table = score_table(compared("cifar10-resnet32-be4"), "calibrated")
    cells = {row[0].text: row[3] for row in table.rows}
    assert cells["kd-ods"].paper == "0.181 ± 0.002"
    assert cells["kd"].paper == "0.188 ± 0.003"
    assert cells["scratch"].paper == "0.204 ± 0.002"
    assert cells["teachers (3 networks)"].paper == "0.167"


def test_a_method_with_its_own_settings_has_no_paper_number(small_run: Path, compared):
    path = small_run / "recipe.json"
    path.write_text(
        path.read_text().replace('{"perturb": "ods"}', '{"perturb": "ods", "step_size": "match"}')
    )
    table = score_table(compared("cifar10-resnet32-be4"), "calibrated")
    assert next(row for row in table.rows if row[0].text == "kd-ods")[3].paper == ""


def test_the_papers_own_tables_have_ours_beside_the_same_setting(small_run: Path, compared):
    path = small_run / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"] |= {"members": 4}
    facts["recipe"]["student"] |= {"alpha": 0.9, "temperature": 4.0}
    facts["recipe"]["methods"]["scratch"] = {"perturb": "clean", "form": {"kind": "dirichlet"}}
    path.write_text(json.dumps(facts))
    run = compared("cifar10-resnet32-be4", "cifar10-resnet32-end2-4")
    tuning, endd = paper_tables(run)
    cells = {row[0].text: row for row in tuning.rows}
    assert len(cells) == 12
    assert cells["α = 0.8, τ = 2"][2] == Cell("–", paper="0.169 ± 0.005")
    ours = [s.nll for s in run.scores if (s.model, s.split, s.calibration) == ("kd", "valid", "calibrated")]
    expected = f"{np.mean(ours):.3f} ± {np.std(ours, ddof=1):.3f}"
    assert cells["α = 0.9, τ = 4"][2] == Cell(expected, paper="0.174 ± 0.003")
    rows = {row[0].text: row for row in endd.rows}
    ours = [s.nll for s in run.scored("scratch")]
    expected = f"{np.mean(ours):.3f} ± {np.std(ours, ddof=1):.3f}"
    assert rows["4, EnD²"][2] == Cell(expected, paper="0.260")
    assert rows["8, EnD²"][2] == Cell("–", paper="0.225")
    other = paper_tables(compared("cifar10-resnet32-be4"))[1]
    assert {row[0].text: row for row in other.rows}["4, EnD²"][2] == Cell("–", paper="0.260")
    assert paper_tables(compared("cifar100-wrn28x2-be4")) == []


def test_a_recipe_that_is_not_the_papers_has_none_of_its_tables(small_run: Path):
    assert paper_tables(Run.open(small_run)) == []


def test_a_student_of_more_members_than_teachers_is_judged_by_all_of_them(small_run: Path, maker):
    for seed in (0, 1):
        for split in ("valid", "test"):
            maker.save(small_run, f"kd/{seed}", split, maker.logits(8, 1.0))
    run = Run.open(small_run)
    assert run.pooled("kd", "test").members == run.members_of("kd") == 8
    assert run.pooled("teachers", "test").members == 3


def test_one_teacher_is_singular(small_run: Path):
    path = small_run / "recipe.json"
    path.write_text(path.read_text().replace('"members": 3', '"members": 1'))
    (small_run / "analysis" / "dee.csv").unlink()  # which is of three
    run = Run.open(small_run)
    assert one_line(run).startswith("digits: 1 teacher (and 2 for comparison), 4 methods")
    assert score_table(run, "calibrated").rows[0][0].text == "teachers (1 network)"


@pytest.mark.parametrize(
    ("teachers", "words"),
    [
        (1, ("the NLL of a uniform guess and of the only teacher.", "better than that teacher.")),
        (2, ("the NLL of 1 and 2 teachers averaged", "better than all 2 together.")),
        (3, ("the NLL of 1, 2, … 3 teachers averaged", "better than all 3 together.")),
    ],
)
def test_the_dee_curve_names_the_sizes_it_has(teachers: int, words: tuple[str, str]):
    assert all(each in dee_reading(teachers) for each in words)
