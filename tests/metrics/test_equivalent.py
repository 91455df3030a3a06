from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import (
    calibrated_dee_curve,
    dee,
    dee_curve,
    dee_floored_at_one,
    ensemble_log_probs,
    fit_temperature,
    format_dee,
    format_dees,
    nll,
    temper,
)
from polyphony.metrics.equivalent import teacher_subsets

CURVE = [math.log(10), 0.30, 0.22, 0.20]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("value", "paper", "floored"),
    [
        (0.30, 1.0, 1.0),
        (0.26, 1.5, 1.5),
        (0.22, 2.0, 2.0),
        (0.20, 3.0, 3.0),
        (0.19, math.inf, math.inf),
        ((math.log(10) + 0.30) / 2, 0.5, 1.0),
        (math.log(10), 0.0, 1.0),
        (5.0, 0.0, 1.0),
        (math.inf, 0.0, 1.0),
    ],
)
def test_dee_in_both_conventions(value, paper, floored):
    assert dee(value, CURVE) == pytest.approx(paper)
    assert dee_floored_at_one(value, CURVE) == pytest.approx(floored)


def test_a_teacher_worse_than_uniform_shows_the_conventions_apart():
    curve = [1.0, 1.6, 0.8]
    assert dee(1.2, curve) == 0.0
    assert dee_floored_at_one(1.2, curve) == pytest.approx(1.5)


def test_an_infinite_teacher_is_no_teacher():
    assert dee(0.9, [1.0, math.inf, 0.8]) == 2.0
    assert dee_floored_at_one(0.9, [1.0, math.inf, 0.8]) == 2.0


def test_not_a_number_has_no_equivalent():
    assert math.isnan(dee(math.nan, CURVE))
    assert math.isnan(dee(0.5, [1.0, math.nan]))


@pytest.mark.parametrize(("value", "shown"), [(2.516, "2.52"), (0.0, "0.00"), (math.inf, ">8")])
def test_past_the_curve_is_shown_as_more(value, shown):
    assert format_dee(value, 8) == shown


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    curve=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=7),
    value=st.floats(0.0, 3.5),
    start=st.sampled_from([0, 1]),
)
def test_dee_is_the_first_size_a_fine_search_finds(curve, value, start):
    """Non-monotone curves included: walk along ℓ and stop at the first NLL(ℓ) ≤ value."""
    curve = [3.0, *curve]
    sizes = np.linspace(start, len(curve) - 1, 2000 * (len(curve) - 1 - start) + 1)
    good = sizes[np.interp(sizes, range(len(curve)), curve) <= value]
    found = (dee, dee_floored_at_one)[start](value, curve)
    if math.isfinite(found):
        assert np.interp(found, range(len(curve)), curve) <= value + 1e-9
        assert start <= found <= (good[0] if len(good) else len(curve) - 1)
        assert not len(good) or good[0] - found <= 1 / 2000 + 1e-9
    else:
        assert not len(good)


def test_curve_is_a_mean_over_all_subsets(draw_case):
    case = draw_case(0, members=5)
    curve = dee_curve(case.logits, case.labels, rng())
    assert curve[0] == math.log(10)
    probs = case.logits.double().softmax(-1).numpy()[:, range(120), case.labels]
    for size in range(1, 6):
        subsets = itertools.combinations(range(5), size)
        expected = np.mean([-np.log(probs[list(subset)].mean(0)).mean() for subset in subsets])
        assert curve[size] == pytest.approx(expected, rel=1e-12)


def test_calibrated_curve_fits_every_subset_on_validation(draw_case):
    test, valid = draw_case(1, members=3, scale=5.0), draw_case(2, members=3, scale=5.0)
    curve = calibrated_dee_curve(*test, *valid, rng())
    for size in range(1, 4):
        scores = []
        for subset in map(list, itertools.combinations(range(3), size)):
            temperature = fit_temperature(ensemble_log_probs(valid.logits[subset]), valid.labels)
            scores.append(nll(temper(ensemble_log_probs(test.logits[subset]), temperature), test.labels))
        assert curve[size] == pytest.approx(np.mean(scores), rel=1e-12)
    assert curve[0] == math.log(10)
    assert curve[1] < dee_curve(*test, rng())[1]  # overconfident teachers gain


def test_teachers_of_test_and_validation_must_be_the_same(draw_case):
    with pytest.raises(ValueError, match="3 teachers on test but 2"):
        calibrated_dee_curve(*draw_case(0, members=3), *draw_case(0, members=2), rng())


def test_a_saturated_teacher_keeps_the_curve_finite_or_infinite_but_never_nan(case):
    curve = dee_curve(case.logits, case.labels, rng())
    assert not any(math.isnan(value) for value in curve)
    assert curve[-1] == pytest.approx(nll(ensemble_log_probs(case.logits), case.labels), rel=1e-10, abs=1e-14)
    assert curve[-1] <= curve[1] + 1e-12  # Jensen


def test_subsets_are_distinct_and_every_teacher_has_an_equal_chance():
    drawn = [subset for seed in range(60) for subset in teacher_subsets(12, 4, 30, rng(seed))]
    for start in range(0, len(drawn), 30):
        part = {tuple(subset) for subset in drawn[start : start + 30]}
        assert len(part) == 30
        assert all(len(set(subset)) == 4 for subset in part)
    counts = np.bincount(np.ravel(drawn), minlength=12)
    # 1800 draws of probability 1/3: a standard deviation of 20 around 600.
    assert np.abs(counts - 600).max() < 100


def test_equal_generators_draw_equal_subsets(draw_case):
    case = draw_case(0, members=8)
    assert dee_curve(*case, rng(1), subsets=4) == dee_curve(*case, rng(1), subsets=4)
    assert dee_curve(*case, rng(1), subsets=4) != dee_curve(*case, rng(2), subsets=4)


def test_few_subsets_are_all_taken():
    assert teacher_subsets(4, 2, 6, rng()) == [list(pair) for pair in itertools.combinations(range(4), 2)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0, 3.0], "2.00 ± 1.00"),
        ([2.5], "2.50"),
        ([math.inf, math.inf], ">8"),
        ([5.25, math.inf, 7.0], "5.25 … >8"),
    ],
)
def test_dees_over_seeds_do_not_claim_more_than_their_least(values, text):
    assert format_dees(values, 8) == text
