"""Methods compared over several runs: which runs are sets of one study, and paired differences."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from polyphony import metrics
from polyphony.report import comparison
from polyphony.report.differences import difference_table, differences
from polyphony.report.study_runs import studies
from polyphony.runs.run import Run


@pytest.fixture
def sets(tmp_path: Path, maker) -> list[Run]:
    """Two sets of teachers of one study, and another study."""
    folders = [maker.write(tmp_path / name) for name in ("a-0", "a-1", "b-0")]
    for place, folder in enumerate(folders):
        path = folder / "recipe.json"
        facts = json.loads(path.read_text())
        facts["recipe"]["data"]["seed"] = place
        facts["recipe"]["teachers"]["seed"] = place
        facts["recipe"]["student"] = facts["recipe"]["student"] | {"epochs": 4 + (place == 2)}
        path.write_text(json.dumps(facts))
    return [Run.open(folder) for folder in folders]


@pytest.mark.parametrize("n", [2, 3, 12])
def test_the_interval_of_paired_differences_is_scipys(n):
    one, other = np.random.default_rng(n).normal(size=(2, n))
    result = metrics.paired(list(one - other))
    low, high = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (result.n, result.mean) == (n, pytest.approx((one - other).mean()))
    assert (result.mean - result.half, result.mean + result.half) == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[0.5], [math.inf, 1.0]])
def test_one_pair_and_an_infinite_difference_have_no_interval(values):
    assert math.isnan(metrics.paired(values).half)


def test_runs_that_differ_in_seeds_alone_are_one_study(sets: list[Run]):
    groups = studies(sets)
    assert [(study.name, len(study.runs)) for study in groups] == [("a", 2), ("b-0", 1)]
    assert len(groups[0].scored("kd")) == 4
    assert [study.name for study in studies(sets[:2])] == ["small"]


def test_a_run_with_the_same_images_and_teachers_is_not_a_second_set(sets: list[Run]):
    path = sets[1].folder / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"]["teachers"]["seed"] = 0  # data.seed is 1, but official splits ignore it
    path.write_text(json.dumps(facts))
    assert len(studies([sets[0], Run.open(sets[1].folder)])) == 2


def test_sets_of_different_sizes_count_as_one_value_each(sets: list[Run]):
    lines = (sets[0].folder / "scores.csv").read_text().splitlines()
    (sets[0].folder / "scores.csv").write_text("".join(f"{line}\n" for line in lines if ",1," not in line))
    (study,) = studies([Run.open(run.folder) for run in sets[:2]])
    (each,) = (d for d in differences(study) if (d.words, d.quantity.name) == ("kd-ods − kd", "nll"))
    assert (each.paired.n, each.over_sets.n) == (3, 2)
    mean = f"{each.over_sets.mean:+.3f}".replace("-", "−")
    assert each.over_sets_text == f"{mean} ± {each.over_sets.half:.3f}"


def test_methods_are_compared_by_pairs_of_the_same_teachers_and_seed(sets: list[Run]):
    (study, _) = studies(sets)
    results = {(each.method, each.reference, each.quantity.name): each for each in differences(study)}
    ods, noise = ("kd-ods", "kd"), ("kd-gaussian", "kd")
    assert {key[:2] for key in results} == {ods, noise, ("kd-ods", "kd-gaussian")}
    for column, name in (("nll", "nll"), ("acc", "acc")):
        rows = {
            method: [getattr(score, column) for run in sets[:2] for score in run.scored(method)]
            for method in ("kd", "kd-ods")
        }
        apart = np.subtract(rows["kd-ods"], rows["kd"])
        each = results[*ods, name]
        assert each.paired.mean == pytest.approx(apart.mean())
        assert each.paired.half == pytest.approx(stats.sem(apart) * stats.t.ppf(0.975, 3))
        assert each.ahead == int((apart < 0).sum() if column == "nll" else (apart > 0).sum())
        of_sets = apart.reshape(2, -1).mean(1)
        assert each.over_sets.half == pytest.approx(stats.sem(of_sets) * stats.t.ppf(0.975, 1))
        assert each.text == f"{apart.mean():+.3f} ± {each.paired.half:.3f}".replace("-", "−")
        clear = [abs(apart.mean()) > each.paired.half, abs(of_sets.mean()) > each.over_sets.half]
        assert each.is_clear == all(clear)
    kept = [score.kld / run.scored("teachers")[0].kld for run in sets[:2] for score in run.scored("kd-ods")]
    theirs = [score.kld / run.scored("teachers")[0].kld for run in sets[:2] for score in run.scored("kd")]
    assert results[*ods, "kept"].paired.mean == pytest.approx(np.subtract(kept, theirs).mean())


def test_a_method_with_different_settings_in_some_runs_is_left_out_and_named(sets: list[Run]):
    path = sets[1].folder / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"]["methods"]["kd-ods"] |= {"epochs": 9}
    path.write_text(json.dumps(facts))
    page = comparison([sets[0], Run.open(sets[1].folder)])
    assert "Some runs of small lack these methods or define them differently: kd-ods." in page.html
    assert "kd-ods −" not in page.html


def test_epochs_that_differ_are_named(sets: list[Run]):
    path = sets[2].folder / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"]["methods"]["kd-ods"] |= {"epochs": 9}
    path.write_text(json.dumps(facts))
    words = {each.words for each in differences(*studies([Run.open(sets[2].folder)]))}
    assert words == {
        "kd-gaussian − kd",
        "kd-ods (9 epochs) − kd",
        "kd-ods (9 epochs) − kd-gaussian",
    }


def test_sets_of_one_study_get_no_warning_about_test_images(sets: list[Run]):
    assert "tested on different images" not in comparison(sets).html


@pytest.mark.parametrize("both", [False, True])
def test_a_dee_past_the_curve_counts_without_a_mean(sets: list[Run], rescored, both: bool):
    dees = {("kd", "0"): 2.5, ("kd", "1"): math.inf, ("kd-ods", "0"): math.inf if both else 3.0}
    for run in sets[:2]:
        rescored(run.folder, lambda row: {"dee": dees.get((row["model"], row["seed"]), 3.0)})
    (study,) = studies([Run.open(run.folder) for run in sets[:2]])
    results = {(d.method, d.reference): d for d in differences(study) if d.quantity.name == "dee"}
    each = results["kd-ods", "kd"]
    assert (each.text, each.ahead, each.defined) == ("–", 2, 4)
    assert math.isnan(each.over_sets.half)


def test_the_table_has_one_number_and_its_interval_a_cell(sets: list[Run]):
    (study, _) = studies(sets)
    results = differences(study)
    table = difference_table(results)
    assert table.header[1:] == [
        "NLL", "NLL, as predicted", "follows own teacher (nats)", "accuracy", "better in", "NLL over sets"
    ]  # fmt: skip
    (row,) = (row for row in table.rows if row[0].text == "kd-ods − kd")
    nll = next(each for each in results if (each.words, each.quantity.name) == ("kd-ods − kd", "nll"))
    assert [row[1].text, row[5].text] == [nll.text, f"{nll.ahead} of {nll.defined}"]
    assert all(len(cell.text) <= 15 for cell in row[1:])  # so that it is readable on paper
    alone = difference_table(differences(studies([sets[2]])[0]))
    assert "NLL over sets" not in alone.header


def test_the_page_of_several_runs_has_the_differences_and_their_files(sets: list[Run]):
    page = comparison(sets)
    assert "a: kd-ods − kd" in page.html
    files = page.files()
    assert {"comparison.md", "differences.md", "differences.csv", "differences.svg"} <= files.keys()
    (row,) = (
        line for line in files["differences.csv"].decode().splitlines() if line.startswith("a,kd-ods,kd,nll,")
    )
    results = {
        (each.method, each.quantity.name): each
        for each in differences(studies(sets)[0])
        if each.reference == "kd"
    }
    assert float(row.split(",")[5]) == results["kd-ods", "nll"].paired.mean


def test_differences_need_two_pairs(sets: list[Run], tmp_path: Path):
    text = (sets[0].folder / "scores.csv").read_text().splitlines()
    (sets[0].folder / "scores.csv").write_text("".join(f"{line}\n" for line in text if ",1," not in line))
    (study,) = studies([Run.open(sets[0].folder)])
    assert differences(study) == []
    assert difference_table([]).rows == []


def test_unlabelled_images_are_compared_with_the_same_method_without_them():
    kept = Path(__file__).parents[2] / "docs" / "results" / "unlabelled"
    (study,) = studies([Run.open(kept)])
    pairs = {(each.method, each.reference) for each in differences(study)}
    for method in ("kd", "ods"):
        assert {(f"{method}-unlabelled", method), (f"{method}-unlabelled", f"{method}-long")} <= pairs
    assert ("ods-unlabelled", "kd-unlabelled") in pairs
    assert ("ods-unlabelled", "kd-long") not in pairs
