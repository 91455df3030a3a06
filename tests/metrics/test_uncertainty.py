from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import (
    ensemble_log_probs,
    entropy,
    fit_temperature,
    member_entropy,
    mutual_information,
    predictive_entropy,
    temper,
    uncertainties,
)


def test_entropies_are_scipys(case):
    members, mean = np.exp(case.member_log_probs()), np.exp(case.log_probs())
    of_mean, of_members = scipy.stats.entropy(mean, axis=-1), scipy.stats.entropy(members, axis=-1)
    np.testing.assert_allclose(entropy(ensemble_log_probs(case.logits)), of_mean, rtol=1e-9, atol=1e-12)
    assert predictive_entropy(case.logits) == pytest.approx(of_mean.mean(), rel=1e-9, abs=1e-12)
    assert member_entropy(case.logits) == pytest.approx(of_members.mean(), rel=1e-9, abs=1e-12)


def test_mutual_information_is_entropy_of_the_mean_minus_mean_of_the_entropies(case):
    members, mean = np.exp(case.member_log_probs()), np.exp(case.log_probs())
    expected = scipy.stats.entropy(mean, axis=-1) - scipy.stats.entropy(members, axis=-1).mean(0)
    found = uncertainties(case.logits).mutual_information
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert mutual_information(case.logits) == pytest.approx(expected.mean(), rel=1e-9, abs=1e-12)
    assert found.min() >= 0


def test_a_temperature_scales_the_prediction_and_not_the_members(draw_case):
    case = draw_case(0)
    log_probs = ensemble_log_probs(case.logits)
    temperature = fit_temperature(log_probs, case.labels)
    scaled = uncertainties(case.logits, temperature)
    expected = np.exp(temper(log_probs, temperature).numpy())
    np.testing.assert_allclose(scaled.entropy, scipy.stats.entropy(expected, axis=-1), rtol=1e-10)
    np.testing.assert_allclose(scaled.doubt, 1 - expected.max(-1), rtol=1e-10)
    assert torch.equal(scaled.mutual_information, uncertainties(case.logits).mutual_information)


def test_certain_members_that_all_differ_hold_ln_m():
    logits = 1000 * torch.eye(4)[:, None]
    assert mutual_information(logits) == pytest.approx(math.log(4))
    assert predictive_entropy(logits) == pytest.approx(math.log(4))
    assert member_entropy(logits) == 0.0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 5),
    scale=st.sampled_from([0.01, 1.0, 20.0, 1000.0]),
)
def test_uncertainties_stay_within_their_bounds(draw_case, seed, members, scale):
    each = uncertainties(draw_case(seed, members, 20, 6, scale).logits)
    for values, most in (
        (each.entropy, math.log(6)),
        (each.mutual_information, math.log(members)),
        (each.doubt, 5 / 6),
    ):
        assert values.min() >= 0
        assert values.max() <= most + 1e-12
