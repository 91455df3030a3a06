from __future__ import annotations

import hashlib
import math
import statistics

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyphony.compute.seeds import generator
from polyphony.metrics import mean_sd
from polyphony.recipe import read_recipe
from polyphony.runs.rows import Score
from polyphony.runs.scores import Standing, by_quality, mean_text, score_text
from polyphony.study import Study, verdict


def test_a_stream_is_told_by_its_purpose_and_number():
    digest = hashlib.sha256(b"subsets 0").digest()
    expected = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    drawn = torch.randperm(1000, generator=generator("subsets", 0))
    assert torch.equal(drawn, torch.randperm(1000, generator=expected))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("subsets", 1)))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("student", 0)))


# For people


def test_accuracy_is_in_per_cent_and_all_else_has_three_digits():
    assert mean_text("acc", mean_sd([0.93, 0.95])) == "94.00 ± 1.41"
    assert mean_text("nll", mean_sd([0.18, 0.181])) == "0.180 ± 0.001"
    assert mean_text("nll", mean_sd([0.18])) == "0.180"  # one seed has no deviation
    assert score_text("acc", [0.9123], 8) == "91.23"
    assert score_text("kld", [0.05, 0.07], 8) == "0.060 ± 0.014"


def test_what_a_model_does_not_have_is_a_dash():
    assert score_text("kld", [0.0, 0.0], 8) == "–"  # one network
    assert score_text("dee", [None], 8) == "–"
    assert score_text("nll", [0.0], 8) == "0.000"


@pytest.mark.parametrize(
    ("dees", "text"),
    [
        ([1.0, 2.0, 3.0], "2.00 ± 1.00"),
        ([2.516], "2.52"),
        ([0.0], "0.00"),
        ([math.inf], ">8"),
        ([math.inf, math.inf], ">8"),
        ([math.inf, 5.004, 7.0], "5.00 … >8"),
    ],
)
def test_dees_over_seeds_do_not_claim_more_than_their_least(dees, text):
    assert score_text("dee", dees, 8) == text


def by_seed(values: list[float]) -> dict[int | None, float]:
    return dict(enumerate(values))


@given(st.lists(st.lists(st.floats(0, 3), min_size=2, max_size=4), min_size=1, max_size=5))
def test_level_are_those_whose_paired_difference_may_be_zero(draws: list[list[float]]):
    found = Standing.of({str(place): by_seed(each) for place, each in enumerate(draws)})
    draws = [each[: min(map(len, draws))] for each in draws]  # of the seeds that all have
    means = [statistics.fmean(each) for each in draws]
    first = int(found.best)
    assert means[first] == min(means)
    for place, each in enumerate(draws):
        apart = [mine - best for mine, best in zip(each, draws[first], strict=True)]
        if place != first and np.std(apart) > 1e-9:
            p = scipy.stats.ttest_1samp(apart, 0).pvalue
            assert abs(p - 0.05) < 1e-6 or (str(place) in found.level) == (p > 0.05)


def test_seeds_that_not_all_have_do_not_make_a_student_the_best():
    nlls = {"a": by_seed([0.50, 0.51, 0.10]), "b": by_seed([0.40, 0.409])}
    found = Standing.of(nlls)
    assert (found.best, found.nll.n, found.level) == ("b", 2, ())
    assert Standing.of({"a": {0: 0.5}, "b": {1: 0.2}}).best == "b"


def test_the_student_of_least_nll_is_named_with_those_it_is_level_with():
    nlls = {"a": by_seed([0.5, 0.521]), "b": by_seed([0.2, 0.22]), "c": by_seed([0.21, 0.25])}
    interval = "the 95 % interval of the difference, paired over 2 seeds,"
    assert by_quality(nlls) == (
        f"The student of least calibrated NLL is b (0.210 ± 0.014), level with c: {interval} holds zero."
    )
    del nlls["c"]
    assert by_quality(nlls).endswith(f"ahead of every other student: {interval} leaves out zero.")
    assert by_quality({"a": nlls["a"]}) == ""
    once = by_quality({"a": {0: 0.5}, "b": {0: 0.2}})
    assert once == (
        "The student of least calibrated NLL is b (0.200); every student was trained once:"
        " no difference between methods can be told from chance."
    )


@pytest.mark.parametrize(
    ("teachers_kld", "said"),
    [(0.1, "kd keeps 50% of it, and"), (0.02, "kd is 2.5 times as diverse, and"), (0.0, "do not disagree")],
)
def test_a_study_ends_with_the_best_student_even_if_it_has_no_ods(tmp_path, teachers_kld: float, said: str):
    study = Study(read_recipe("digits", ["seeds=[0, 1, 2]"]), tmp_path)
    rows = [Score("teachers", None, "test", "calibrated", 0.9, 0.2, 0.1, 0.01, 4.0, teachers_kld, 100)]
    for name in study.recipe.methods:
        nll = 0.1 if name == "kd-gaussian" else 0.3
        rows += [
            Score(name, seed, "test", "calibrated", 0.9, nll + 0.01 * seed, 0.1, 0.01, 2.0, 0.05, 100)
            for seed in study.recipe.seeds
        ]
    assert said in verdict(study, rows)
    assert verdict(study, rows).endswith(
        ". The student of least calibrated NLL is kd-gaussian (0.110 ± 0.010),"
        " ahead of every other student: the 95 % interval of the difference, paired over 3 seeds, leaves out"
        " zero."
    )
