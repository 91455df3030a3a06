from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from polyphony.metrics.selective import Selective


def loop_risk(errors):
    """Error rates among the first 1, 2, … of errors that are in the order of their certainty."""
    return [math.fsum(errors[: i + 1]) / (i + 1) for i in range(len(errors))]


def loop_curve(uncertainty, errors):
    """The mean over every order of equals of their error rates; only for few equals."""
    examples = sorted(zip(uncertainty, errors, strict=True), key=lambda each: each[0])
    groups = [[e for _, e in group] for _, group in itertools.groupby(examples, key=lambda each: each[0])]
    orders = itertools.product(*(itertools.permutations(group) for group in groups))
    return np.mean([loop_risk(list(itertools.chain(*order))) for order in orders], axis=0)


def of(uncertainty, errors):
    return Selective(
        torch.tensor(uncertainty, dtype=torch.float64), torch.tensor(errors, dtype=torch.float64)
    )


def without_ties(seed, n=300):
    rng = np.random.default_rng(seed)
    uncertainty = rng.permutation(n) / n
    return uncertainty, (rng.random(n) < uncertainty).astype(float)


def test_curve_and_area_are_a_loop_over_coverage():
    for seed in range(5):
        uncertainty, errors = without_ties(seed)
        risk = loop_risk(errors[np.argsort(uncertainty)].tolist())
        found = of(uncertainty, errors)
        np.testing.assert_allclose(found.risk, risk, atol=1e-12)
        assert found.aurc == pytest.approx(math.fsum(risk) / len(risk), abs=1e-12)
        best = loop_risk(sorted(errors.tolist()))
        assert found.excess_aurc == pytest.approx((math.fsum(risk) - math.fsum(best)) / len(risk), abs=1e-12)


def test_excess_aurc_takes_off_its_closed_form():
    """Of e errors that come last the area is e/n − (n − e)/n · (H_n − H_{n−e})."""
    uncertainty, errors = without_ties(7)
    n, wrong = len(errors), int(errors.sum())
    best = (wrong - (n - wrong) * sum(1 / i for i in range(n - wrong + 1, n + 1))) / n
    found = of(uncertainty, errors)
    assert found.aurc - found.excess_aurc == pytest.approx(best, abs=1e-12)


@settings(max_examples=40, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=6))
def test_equals_count_as_in_a_random_order(examples):
    uncertainty, errors = map(list, zip(*examples, strict=True))
    np.testing.assert_allclose(of(uncertainty, errors).risk, loop_curve(uncertainty, errors), atol=1e-12)


def test_points_of_the_curve_are_read_off_it():
    uncertainty, errors = without_ties(3, n=10)
    risk = loop_risk(errors[np.argsort(uncertainty)].tolist())
    found = of(uncertainty, errors)
    assert found.risk_at(0.8) == pytest.approx(risk[7])
    assert found.risk_at(0.81) == pytest.approx(risk[8])
    assert found.risk_at(1.0) == pytest.approx(errors.mean())
    assert found.risk_at(0.001) == risk[0]
    allowed = [i + 1 for i, each in enumerate(risk) if each <= 0.2]
    assert found.coverage_at(0.2) == (allowed[-1] / 10 if allowed else 0.0)


def test_a_coverage_that_is_a_whole_number_of_images_is_not_rounded_up():
    assert of(range(100), [0] * 55 + [1] * 45).risk_at(0.55) == 0.0


def test_coverage_at_an_error_rate_that_is_met_exactly():
    assert of(range(20), [0] * 19 + [1]).coverage_at(0.05) == 1.0
    assert of(range(3), [1, 0, 0]).coverage_at(1 / 3) == 1.0


def test_auroc_of_errors_is_sklearns():
    for seed in range(3):
        uncertainty, errors = without_ties(seed)
        uncertainty = np.round(uncertainty, 1)  # with ties
        assert of(uncertainty, errors).auroc == pytest.approx(roc_auc_score(errors, uncertainty))


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_all_right_and_all_wrong(error):
    found = of(range(7), [error] * 7)
    assert (found.aurc, found.excess_aurc, found.auroc) == (error, 0.0, None)
    assert (found.risk_at(0.8), found.coverage_at(0.05)) == (error, 1.0 - error)


def test_no_information_is_the_error_rate_everywhere():
    found = of([1.0] * 8, [1, 0, 0, 0] * 2)
    assert found.risk.tolist() == [0.25] * 8
    assert (found.aurc, found.auroc) == (0.25, 0.5)


def test_nan_and_impossible_coverages_are_rejected():
    with pytest.raises(ValueError, match="NaN"):
        of([0.0, math.nan], [0, 1]).risk  # noqa: B018
    for coverage in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            of([0.0], [0]).risk_at(coverage)
