"""The verdict: the student against one teacher and all teachers, and what to change."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from polyphony.report import Run
from polyphony.report.verdict import ONE_SEED, best_and_ties, best_on_validation, verdict


@pytest.fixture
def scored(small_run: Path, rescored) -> Callable[..., Run]:
    """Returns the run with the given scores of a model at every seed and split."""

    def run(folder: Path = small_run, **models: dict[str, float]) -> Run:
        named = {n.replace("_", "-").replace("best-t", "best t"): cells for n, cells in models.items()}
        return Run.open(rescored(folder, lambda row: named.get(row["model"], {})))

    return run


GOOD, ONE, ALL = {"nll": 0.384, "dee": 3.1}, {"nll": 0.412, "dee": 1.2}, {"nll": 0.378, "dee": 3.9}


def test_the_first_sentence_compares_with_one_teacher_at_its_price(full_run: Path, scored):
    run = scored(full_run, kd_ods=GOOD, best_teacher=ONE, teachers=ALL)
    assert verdict(run).sentence == (
        "kd-ods, at 1.2× the latency of one teacher, has a calibrated NLL of 0.384 on test images."
        " Your best single network has 0.412, all 3 teachers together have 0.378."
    )


def test_without_a_price_it_is_compared_by_parameters(scored):
    sentence = verdict(scored(kd_ods=GOOD)).sentence
    assert sentence.startswith("kd-ods, at 37\N{NO-BREAK SPACE}% of the teachers’ parameters, has")


def test_the_student_is_chosen_on_validation_images(small_run: Path, rescored):
    best = {"split": "valid", "model": "kd"}
    run = Run.open(rescored(small_run, lambda row: {"nll": 0.1} if best.items() <= row.items() else {}))
    means = {m: np.mean([s.nll for s in run.scored(m, "valid")]) for m in run.methods}
    assert best_on_validation(run) == min(means, key=means.__getitem__) == "kd"


def test_the_three_numbers_are_worth_price_and_how_far_members_follow(full_run: Path, scored):
    run = scored(full_run, kd_ods=GOOD, best_teacher=ONE, teachers={**ALL, "kld": 0.5})
    worth, price, follows = verdict(run).headlines
    assert worth.number == run.dee("kd-ods").text
    assert (price.number, "1.2 ms against 1 ms" in price.meaning) == ("1.2×", True)
    assert "file 0.006 MB against 0.005 MB (1 image, 1 thread, onnxruntime" in price.meaning
    assert follows.number == "40\N{NO-BREAK SPACE}%"  # a voice of 0.2 nats, where copies have 0.5
    kept = run.mean("kd-ods", "kld").mean / 0.5
    assert f"its mean-KLD is {100 * kept:.0f}\N{NO-BREAK SPACE}% of the teachers’" in follows.meaning


def test_a_student_worse_than_one_teacher_is_not_praised_for_diversity(scored):
    run = scored(kd_ods={"nll": 1.2, "dee": 0.5, "kld": 3.0}, best_teacher=ONE)
    result = verdict(run)
    words = " ".join([result.sentence, *result.notes, result.students["kd-ods"]])
    assert "diversity" not in words
    assert "Worse than one teacher (calibrated test NLL 0.412): " in words
    assert "kd-ods (1.200)" in words
    assert "kd-ods" in next(note for note in result.notes if note.startswith("Worse"))
    assert result.students["kd-ods"].startswith("Worse than your best network (NLL 1.200 against 0.412)")


@pytest.mark.parametrize(("start", "words"), [("fresh", "start from a teacher"), ("teacher", "lower")])
def test_advice_names_what_the_recipe_does_not_do_yet(scored, start, words, monkeypatch):
    run = scored(kd_ods={"nll": 1.2, "dee": 0.5}, best_teacher=ONE)
    monkeypatch.setattr(type(run.recipe), "starts_from_teacher", lambda recipe, name: start == "teacher")
    (note,) = (note for note in verdict(run).notes if note.startswith("Worse"))
    assert f"Train longer (student.epochs), {words} " in note


def test_a_student_better_than_one_teacher_gets_no_advice(scored):
    good = {name: GOOD | {"kld": 0.2} for name in ("kd", "kd_gaussian", "kd_ods", "scratch")}
    notes = " ".join(verdict(scored(**good, best_teacher=ONE, teachers={**ALL, "kld": 0.5})).notes)
    assert "Worse" not in notes
    assert "alike" not in notes


def test_a_note_names_students_with_members_that_are_alike(scored):
    result = verdict(scored(kd={"kld": 0.01}, teachers={"kld": 0.5}, scratch={"kld": 0.01}))
    (note,) = (note for note in result.notes if "alike" in note)
    assert note.startswith("The members of kd are almost alike")
    assert 'perturb = "ods"' in note
    assert result.students["kd"].endswith("its members are almost alike.")


def test_a_student_from_scratch_follows_no_teacher(small_run: Path):
    words = verdict(Run.open(small_run)).students["scratch"]
    assert words.endswith("trained on labels alone, so its members follow no teacher.")


def test_there_is_nothing_to_follow_if_teachers_do_not_disagree(scored):
    result = verdict(scored(teachers={"kld": 0.0}))
    assert result.headlines[2].number == "–"
    words = [result.sentence, *result.notes, *(each.meaning for each in result.headlines)]
    assert not any("nan" in each or "diversity" in each for each in words)


def test_a_note_counts_the_seeds_that_beat_the_best_teacher(small_run: Path, rescored):
    nlls = {("kd", "0"): 0.3, ("kd", "1"): 0.5, ("best teacher", "1"): 0.4}
    folder = rescored(small_run, lambda row: {"nll": nlls.get((row["model"], row["seed"]), 0.9)})
    assert "kd is better than your best network in 1 of 2 seeds." in verdict(Run.open(folder)).notes


def test_with_one_seed_a_note_says_that_a_difference_may_be_chance(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if ",1," not in line or line.startswith("best teacher")]
    (small_run / "scores.csv").write_text("".join(kept))
    assert verdict(Run.open(small_run)).notes[0] == ONE_SEED


def test_an_older_run_without_a_best_teacher_has_a_verdict(small_run: Path):
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    (small_run / "scores.csv").write_text("".join(line for line in lines if "best teacher" not in line))
    result = verdict(Run.open(small_run))
    assert ". All 3 teachers together have " in result.sentence
    assert "worth" in result.students["kd"]


def test_one_teacher_is_singular(small_run: Path):
    path = small_run / "recipe.json"
    path.write_text(path.read_text().replace('"members": 3', '"members": 1'))
    lines = (small_run / "scores.csv").read_text().splitlines(keepends=True)
    (small_run / "scores.csv").write_text("".join(line for line in lines if "best teacher" not in line))
    (small_run / "analysis" / "dee.csv").unlink()  # which is of three
    assert "Its one teacher has " in verdict(Run.open(small_run)).sentence


# Which student is the best


def by_seed(values: list[float]) -> dict[int | None, float]:
    return dict(enumerate(values))


@given(st.lists(st.lists(st.floats(0, 3), min_size=2, max_size=4), min_size=1, max_size=5))
def test_ties_are_students_whose_paired_difference_may_be_zero(draws: list[list[float]]):
    best, _, ties = best_and_ties({str(place): by_seed(each) for place, each in enumerate(draws)})
    draws = [each[: min(map(len, draws))] for each in draws]  # of the seeds that all have
    means = [statistics.fmean(each) for each in draws]
    first = int(best)
    assert means[first] == min(means)
    for place, each in enumerate(draws):
        apart = [mine - least for mine, least in zip(each, draws[first], strict=True)]
        if place != first and np.std(apart) > 1e-9:
            p = scipy.stats.ttest_1samp(apart, 0).pvalue
            assert abs(p - 0.05) < 1e-6 or (str(place) in ties) == (p > 0.05)


def test_only_seeds_that_all_students_have_count():
    nlls = {"a": by_seed([0.50, 0.51, 0.10]), "b": by_seed([0.40, 0.409])}
    best, nll, ties = best_and_ties(nlls)
    assert (best, nll.n, ties) == ("b", 2, [])
    assert best_and_ties({"a": {0: 0.5}, "b": {1: 0.2}})[0] == "b"


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((0.21, 0.25), "but is not clearly better than kd-gaussian and kd-ods: the 95 % interval"),
        ((0.41, 0.4301), "and is clearly better than every other student: the 95 % interval"),
    ],
)
def test_the_best_student_is_named_with_its_ties(
    small_run: Path, rescored, others: tuple[float, float], words: str
):
    def change(row: dict[str, str]) -> dict[str, float]:
        if row["seed"] not in ("0", "1") or row["model"] == "best teacher":
            return {}
        seed = int(row["seed"])
        nlls = {"kd": (0.2, 0.22), "scratch": (0.5, 0.521)}
        return {"nll": nlls.get(row["model"], others)[seed]}

    notes = verdict(Run.open(rescored(small_run, change))).notes
    (note,) = (note for note in notes if note.startswith("On test images"))
    assert note.startswith("On test images kd has the lowest NLL (0.210 ± 0.014)")
    assert words in note


@pytest.mark.parametrize(
    ("nll", "spread", "is_named"), [(0.404, 0.03, True), (0.404, 0.0, False), (0.5, 0.3, False)]
)
def test_a_cheaper_student_is_named_if_it_is_about_as_good(full_run: Path, rescored, nll, spread, is_named):
    def cells(row: dict[str, str]) -> dict[str, float]:
        mean = {"kd-ods": 0.40, "kd": nll}.get(row["model"], 0.9)
        noise = spread * (-1) ** int(row["seed"] or 0) if row["model"] == "kd" else 0.0
        return {"nll": mean + noise + 0.001 * int(row["seed"] or 0) ** 2} if row["split"] == "valid" else GOOD

    folder = rescored(full_run, cells)
    prices = (folder / "analysis" / "latency.csv").read_text().splitlines()
    prices = [line.replace(",1.2,", ",0.6,") if line.startswith("kd,") else line for line in prices]
    (folder / "analysis" / "latency.csv").write_text("\n".join(prices) + "\n")
    run = Run.open(folder)
    assert best_on_validation(run) == "kd-ods"
    notes = [note for note in verdict(run).notes if "use it if milliseconds count" in note]
    own, other = (statistics.fmean(run.valid_nll(name).values()) for name in ("kd-ods", "kd"))
    words = (
        "kd takes 50\N{NO-BREAK SPACE}% of the time of kd-ods and is not clearly worse on validation images"
    )
    assert notes == (
        [f"{words} (NLL {other:.3f} against {own:.3f}): use it if milliseconds count."] * is_named
    )
