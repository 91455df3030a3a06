from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import Predictions, dee, dee_curve, ensemble_log_probs, nll
from polyphony.metrics.equivalent import MAX_SUBSETS, RANDOM_SUBSETS, teacher_subsets
from polyphony.metrics.temperature import fit_temperature, temper

CURVE = [math.log(10), 0.30, 0.22, 0.20]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.30, 1.0),
        (0.26, 1.5),
        (0.22, 2.0),
        (0.20, 3.0),
        (0.19, math.inf),
        ((math.log(10) + 0.30) / 2, 0.5),
        (math.log(10), 0.0),
        (math.inf, 0.0),
    ],
)
def test_dee_is_read_off_the_curve(value, expected):
    assert dee(value, CURVE) == pytest.approx(expected)


def test_a_curve_may_rise_or_be_infinite():
    assert dee(1.2, [1.0, 1.6, 0.8]) == 0.0
    assert dee(0.9, [1.0, math.inf, 0.8]) == 2.0


def test_not_a_number_has_no_equivalent():
    assert math.isnan(dee(math.nan, CURVE))
    assert math.isnan(dee(0.5, [1.0, math.nan]))


@settings(max_examples=60, derandomize=True)
@given(curve=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=7), value=st.floats(0.0, 3.5))
def test_dee_is_the_first_size_a_fine_search_finds(curve, value):
    """Non-monotone curves included: walk along ℓ and stop at the first NLL(ℓ) ≤ value."""
    curve = [3.0, *curve]
    sizes = np.linspace(0, len(curve) - 1, 2000 * (len(curve) - 1) + 1)
    good = sizes[np.interp(sizes, range(len(curve)), curve) <= value]
    found = dee(value, curve)
    if math.isfinite(found):
        assert np.interp(found, range(len(curve)), curve) <= value + 1e-9
        assert 0 <= found <= (good[0] if len(good) else len(curve) - 1)
        assert not len(good) or good[0] - found <= 1 / 2000 + 1e-9
    else:
        assert not len(good)


def subsets_of(teachers, size):
    return [list(subset) for subset in itertools.combinations(range(teachers), size)]


@pytest.mark.parametrize("teachers", [1, 5, 8])
def test_curve_is_a_mean_over_all_subsets(draw_case, teachers):
    case = draw_case(0, members=teachers)
    curve = dee_curve(Predictions(*case), rng())
    assert curve[0] == math.log(10)
    probs = case.logits.double().softmax(-1).numpy()[:, range(120), case.labels]
    for size in range(1, teachers + 1):
        expected = np.mean([-np.log(probs[s].mean(0)).mean() for s in subsets_of(teachers, size)])
        assert curve[size] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 10**9])
def test_calibrated_curve_fits_every_subset_on_validation(draw_case, monkeypatch, at_once):
    monkeypatch.setattr("polyphony.metrics.equivalent._BLOCK", at_once)
    test, valid = draw_case(1, members=4, scale=5.0), draw_case(2, members=4, scale=5.0)
    curve = dee_curve(Predictions(*test), rng(), Predictions(*valid))
    for size in range(1, 5):
        scores = []
        for subset in subsets_of(4, size):
            temperature = fit_temperature(ensemble_log_probs(valid.logits[subset]), valid.labels)
            scores.append(nll(temper(ensemble_log_probs(test.logits[subset]), temperature), test.labels))
        assert curve[size] == pytest.approx(np.mean(scores), rel=1e-12)
    assert curve[0] == math.log(10)
    assert curve[1] < dee_curve(Predictions(*test), rng())[1]  # overconfident teachers gain


def test_teachers_of_test_and_validation_must_be_the_same(draw_case):
    with pytest.raises(ValueError, match="3 teachers on test but 2"):
        dee_curve(Predictions(*draw_case(0, members=3)), rng(), Predictions(*draw_case(0, members=2)))


def test_a_saturated_teacher_keeps_the_curve_finite_or_infinite_but_never_nan(cases):
    for name, case in cases.items():
        curve = dee_curve(Predictions(*case), rng())
        assert not any(math.isnan(value) for value in curve), name
        together = nll(ensemble_log_probs(case.logits), case.labels)
        assert curve[-1] == pytest.approx(together, rel=1e-10, abs=1e-14), name
        assert curve[-1] <= curve[1] + 1e-12, name  # Jensen


@pytest.mark.parametrize("teachers", [1, 8, 12])
def test_every_subset_is_taken_once_while_there_are_a_few_thousand(teachers):
    found = list(teacher_subsets(teachers, rng()))
    assert [chosen.T.tolist() for chosen in found] == [subsets_of(teachers, s + 1) for s in range(teachers)]
    assert sum(chosen.shape[1] for chosen in found) == 2**teachers - 1 <= MAX_SUBSETS


def test_of_more_some_are_drawn_and_every_teacher_has_an_equal_chance():
    found = list(teacher_subsets(13, rng()))
    for size, chosen in enumerate(found, start=1):
        distinct = {tuple(sorted(set(subset))) for subset in chosen.T.tolist()}
        assert {len(subset) for subset in distinct} == {size}
        assert len(distinct) == chosen.shape[1] == min(RANDOM_SUBSETS, math.comb(13, size))
    drawn = torch.cat([list(teacher_subsets(13, rng(seed)))[3] for seed in range(15)], dim=1)
    counts = np.bincount(drawn.flatten(), minlength=13)
    # 1920 draws of probability 4/13: a standard deviation of 20 around 591.
    assert np.abs(counts - 15 * RANDOM_SUBSETS * 4 / 13).max() < 100


def test_equal_generators_draw_equal_subsets(draw_case):
    case = Predictions(*draw_case(0, members=13, examples=5))
    assert dee_curve(case, rng(1)) == dee_curve(case, rng(1))
    assert dee_curve(case, rng(1)) != dee_curve(case, rng(2))
