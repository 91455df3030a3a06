from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyphony import metrics
from polyphony.report import Run
from polyphony.report.compare import comparison_table
from polyphony.report.figures.quality import dee_reading
from polyphony.report.paper import PaperExperiments
from polyphony.report.provenance import one_line
from polyphony.report.score_tables import clear_winner, paper_tables, score_table
from polyphony.report.study_runs import studies
from polyphony.report.tables import Cell
from polyphony.report.verdict import TakeHome, health_checks, take_home
from polyphony.runs.scores import by_quality


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


def test_nothing_is_bold_without_a_spread_or_a_rival():
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


def compared(folder: Path, *experiments: str) -> Run:
    """A run that is said to be some of the paper's experiments."""
    run = Run.open(folder)
    vars(run)["paper"] = PaperExperiments(experiments, "")  # where a cached property keeps what it found
    return run


def told(run: Run) -> TakeHome:
    return take_home(run, health_checks(run))


def test_the_table_has_the_scores_of_the_file(small_run: Path):
    run = Run.open(small_run)
    table = score_table(run, "calibrated")
    assert "n = 2 seeds" in table.caption
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    values = [s.nll for s in run.scores if (s.model, s.split, s.calibration) == ("kd", "test", "calibrated")]
    assert rows["kd"][0] == "1,100"
    assert rows["kd"][2] == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert rows["kd"][5] == "2.50 … >5"
    assert rows["teachers (3 networks)"][0] == "3,000"


def test_the_papers_numbers_stand_beside_those_of_the_same_method(small_run: Path):
    table = score_table(compared(small_run, "cifar10-resnet32-be4"), "calibrated")
    cells = {row[0].text: row[3] for row in table.rows}
    assert cells["kd-ods"].paper == "0.181 ± 0.002"
    assert cells["kd"].paper == "0.188 ± 0.003"
    assert cells["scratch"].paper == "0.204 ± 0.002"
    assert cells["teachers (3 networks)"].paper == "0.167"


def test_a_method_with_settings_of_its_own_has_no_paper_number(small_run: Path):
    path = small_run / "recipe.json"
    path.write_text(
        path.read_text().replace('{"perturb": "ods"}', '{"perturb": "ods", "step_size": "match"}')
    )
    table = score_table(compared(small_run, "cifar10-resnet32-be4"), "calibrated")
    assert next(row for row in table.rows if row[0].text == "kd-ods")[3].paper == ""


def test_the_papers_own_tables_have_ours_beside_the_same_setting(small_run: Path):
    path = small_run / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"] |= {"members": 4}
    facts["recipe"]["student"] |= {"alpha": 0.9, "temperature": 4.0}
    facts["recipe"]["methods"]["scratch"] = {"perturb": "clean", "form": {"kind": "dirichlet"}}
    path.write_text(json.dumps(facts))
    run = compared(small_run, "cifar10-resnet32-be4", "cifar10-resnet32-end2-4")
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
    other = paper_tables(compared(small_run, "cifar10-resnet32-be4"))[1]
    assert {row[0].text: row for row in other.rows}["4, EnD²"][2] == Cell("–", paper="0.260")
    assert paper_tables(compared(small_run, "cifar100-wrn28x2-be4")) == []
    assert paper_tables(Run.open(small_run)) == []


def test_the_verdict_names_the_student_of_least_validation_nll_and_its_three_numbers(small_run: Path):
    run = Run.open(small_run)
    means = {m: np.mean([s.nll for s in run.scored(m, "valid")]) for m in run.methods if m != "scratch"}
    champion = min(means, key=lambda name: means[name])
    said = told(run)
    assert said.sentence.startswith(f"The student chosen on validation images, {champion},")
    kld = np.mean([s.kld for s in run.scored(champion)]) / run.scored("teachers")[0].kld
    dee = "2.50" if champion == "kd" else "3.00"  # of its two seeds one is past the curve
    assert [each.number for each in said.headlines] == [f"{kld:.0%}", dee, "37%"]


def test_the_page_and_the_terminal_rank_students_alike(small_run: Path):
    run = Run.open(small_run)
    sentence = by_quality({name: run.by_seed(name, "nll") for name in run.methods})
    best = min(run.methods, key=lambda name: np.mean([s.nll for s in run.scored(name)]))
    assert sentence.startswith(f"The student of least calibrated NLL is {best} (")
    (page,) = (words for words in told(run).qualified if "NLL" in words)
    words = (
        f"On test images {best} has the least NLL, " if best not in told(run).sentence else "In NLL it is "
    )
    assert page.startswith(words)
    assert sentence.endswith(f"), {page.removeprefix(words)}")


def test_the_verdict_says_when_a_student_is_worse_than_one_teacher(small_run: Path):
    rows = re.sub(",(2.5|3.0|inf),", ",0.5,", (small_run / "scores.csv").read_text())
    (small_run / "scores.csv").write_text(rows)
    assert "predicts worse than a single teacher (DEE 0.50)" in told(Run.open(small_run)).sentence


def test_teachers_that_do_not_disagree_leave_no_diversity_to_keep(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    for row in rows:
        if row["model"] == "teachers":
            row["kld"] = "0.0"
    written = [lines[0], *(",".join(row.values()) for row in rows)]
    (small_run / "scores.csv").write_text("".join(f"{line}\n" for line in written))
    run = Run.open(small_run)
    said = told(run)
    assert "though its teachers do not disagree" in said.sentence
    assert "no diversity to keep" in said.headlines[0].meaning
    best = next(method for method in run.methods if f"images, {method}," in said.sentence)
    assert said.headlines[0].number == f"{run.mean(best, 'kld').mean:.3f}"
    last = [row[-2].text for row in comparison_table(studies([run])).rows]
    assert last == ["–"] * len(run.models)
    words = [said.sentence, *said.qualified, *(each.number + each.meaning for each in said.headlines)]
    assert not any("nan" in each for each in words)


def with_klds(run: Path, **klds: list[float]) -> Run:
    """The run with other mean-KLDs on test, by seed."""
    lines = (run / "scores.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    for row in rows:
        if row["model"] in klds and row["split"] == "test":
            row["kld"] = str(klds[row["model"]][int(row["seed"])])
    (run / "scores.csv").write_text("".join(f"{line}\n" for line in [lines[0], *map(joined, rows)]))
    return Run.open(run)


def joined(row: dict[str, str]) -> str:
    return ",".join(row.values())


def test_a_student_that_is_surely_more_diverse_is_told_of_though_another_may_be_more_so(small_run: Path):
    champion = told(Run.open(small_run)).sentence.split("images, ")[1].split(",")[0]
    second, top = (name for name in ("kd", "kd-gaussian", "kd-ods") if name != champion)
    run = with_klds(small_run, **{champion: [0.1, 0.1], second: [0.2, 0.201], top: [0.001, 0.6]})
    assert any(f"The most diverse distilled student is {second}:" in each for each in told(run).qualified)
    run = with_klds(small_run, **{second: [0.001, 0.3]})
    nobody = f"No distilled student can be told to be more diverse than {champion}."
    assert nobody in told(run).qualified


def test_members_that_are_alike_are_members(small_run: Path):
    run = with_klds(small_run, **{key: [0.0, 0.0] for key in ("kd", "kd-gaussian", "kd-ods")})
    assert "keeps 0% of its teachers’ diversity" in told(run).sentence


def test_a_student_of_more_members_than_teachers_is_judged_by_all_of_them(small_run: Path, maker):
    for seed in (0, 1):
        for split in ("valid", "test"):
            maker.save(small_run, f"kd/{seed}", split, maker.logits(8, 1.0))
    run = Run.open(small_run)
    assert run.pooled("kd", "test").members == run.members_of("kd") == 8
    assert run.pooled("teachers", "test").members == 3


def test_the_health_check_finds_a_collapsed_student(small_run: Path, maker):
    one = maker.logits(1, 0.0)
    for seed in (0, 1):
        maker.save(small_run, f"kd/{seed}", "test", np.repeat(one, 3, axis=0))
    run = Run.open(small_run)
    assert health_checks(run)["kd"].verdict == metrics.Verdict.COLLAPSED
    assert any("kd have collapsed" in words for words in told(run).qualified)


@pytest.mark.parametrize(("distances", "words"), [((0.8, 0.6), "apart by 0.70"), ((), None)])
def test_the_health_check_tells_the_distance_of_factors_if_it_was_measured(
    small_run: Path, distances: tuple[float, ...], words: str | None
):
    lines = [f"kd,{seed},{value}\n" for seed, value in enumerate(distances)]
    (small_run / "analysis" / "factors.csv").write_text("".join(["model,seed,distance\n", *lines]))
    findings = health_checks(Run.open(small_run))["kd"].findings
    assert any("rank-one factors" in finding for finding in findings) == (words is not None)
    assert words is None or any(words in finding for finding in findings)


def test_factors_that_began_near_each_other_are_not_compared_with_fresh_ones(small_run: Path):
    (small_run / "analysis" / "factors.csv").write_text("model,seed,distance\nkd,0,0.04\n")
    fresh = health_checks(Run.open(small_run))["kd"].findings[-1]
    assert fresh.endswith("apart by 0.04 of their norm (fresh ones: about 0.85).")
    path = small_run / "recipe.json"
    facts = json.loads(path.read_text())
    facts["recipe"]["student"] = facts["recipe"]["student"] | {"start": "teacher"}
    path.write_text(json.dumps(facts))
    assert health_checks(Run.open(small_run))["kd"].findings[-1].endswith("apart by 0.04 of their norm.")


def test_one_teacher_is_spoken_of_as_one(small_run: Path):
    path = small_run / "recipe.json"
    path.write_text(path.read_text().replace('"members": 3', '"members": 1'))
    run = Run.open(small_run)
    assert one_line(run).startswith("digits: 1 teacher (and 2 for comparison), 4 methods")
    assert score_table(run, "calibrated").rows[0][0].text == "teachers (1 network)"
    assert told(run).headlines[1].meaning.endswith(" of the one teacher")


@pytest.mark.parametrize(
    ("teachers", "words"),
    [
        (1, ("the NLL of no teacher and of the one there is;", "better than that teacher.")),
        (2, ("the NLL of 1 and 2 teachers averaged", "better than all 2 together.")),
        (3, ("the NLL of 1, 2, … 3 teachers averaged", "better than all 3 together.")),
    ],
)
def test_the_dee_curve_names_the_sizes_it_has(teachers: int, words: tuple[str, str]):
    assert all(each in dee_reading(teachers) for each in words)
