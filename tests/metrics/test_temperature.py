from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from polyphony.metrics import ensemble_log_probs, nll
from polyphony.metrics.temperature import TEMPERATURE_BOUNDS, fit_temperature, fit_temperatures, temper


def scipy_minimum(log_probs, labels):
    """The least NLL within the bounds: a grid on the log scale, then a bounded search around its best."""
    keep = np.isfinite(log_probs[np.arange(len(labels)), labels])
    log_probs, labels = log_probs[keep], labels[keep]

    def loss(log_t):
        with np.errstate(divide="ignore"):
            return -log_softmax(log_probs / math.exp(log_t), axis=-1)[np.arange(len(labels)), labels].mean()

    grid = np.linspace(*np.log(TEMPERATURE_BOUNDS), 200)
    best = int(np.argmin([loss(t) for t in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, 199)]
    refined = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-10})
    return min(refined.fun, loss(grid[best])), loss


def test_fitted_temperature_attains_scipys_minimum(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        temperature = fit_temperature(log_probs, case.labels)
        assert TEMPERATURE_BOUNDS[0] <= temperature <= TEMPERATURE_BOUNDS[1], name
        if torch.isfinite(log_probs[torch.arange(len(log_probs)), case.labels.long()]).any():
            least, loss = scipy_minimum(log_probs.numpy(), case.labels.long().numpy())
            assert loss(math.log(temperature)) == pytest.approx(least, rel=1e-9, abs=1e-12), name


def test_tempering_is_scipys_softmax(cases):
    for name, case in cases.items():
        with np.errstate(divide="ignore"):
            expected = log_softmax(case.log_probs() / 2.5, axis=-1)
        found = temper(ensemble_log_probs(case.logits), 2.5)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13, err_msg=name)


@settings(max_examples=25, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), true=st.floats(0.2, 50.0))
def test_overconfidence_is_undone(draw_case, seed, true):
    """Scaling logits by τ scales the optimal temperature by τ, and leaves the tempered prediction alone."""
    case = draw_case(seed, 1, 60, 4, 1.0)
    log_probs = ensemble_log_probs(case.logits)
    scaled = (true * log_probs).log_softmax(-1)
    base, fitted = fit_temperature(log_probs, case.labels), fit_temperature(scaled, case.labels)
    if all(1.01 * low < t < 0.99 * high for t in (base, base * true) for low, high in [TEMPERATURE_BOUNDS]):
        assert fitted == pytest.approx(base * true, rel=1e-6)
        np.testing.assert_allclose(temper(scaled, fitted), temper(log_probs, base), rtol=1e-5, atol=1e-8)


def test_validation_without_an_error_ends_at_the_lower_bound(draw_case):
    log_probs = ensemble_log_probs(draw_case(0).logits)
    assert fit_temperature(log_probs, log_probs.argmax(-1)) == TEMPERATURE_BOUNDS[0]


def test_useless_validation_ends_at_the_upper_bound(draw_case):
    log_probs = ensemble_log_probs(draw_case(0).logits)
    assert fit_temperature(log_probs, log_probs.argmin(-1)) == TEMPERATURE_BOUNDS[1]


def test_uniform_predictions_keep_temperature_one():
    assert fit_temperature(torch.full((6, 3), -math.log(3)), torch.tensor([0, 1, 2, 0, 0, 1])) == 1.0


def test_impossible_labels_have_no_say(draw_case):
    case = draw_case(3, members=1)
    log_probs = ensemble_log_probs(case.logits)
    impossible = torch.full((5, 10), -math.inf)
    impossible[:, 0] = 0.0
    labels = torch.cat([case.labels, torch.ones(5, dtype=torch.long)])
    with_impossible = fit_temperature(torch.cat([log_probs, impossible]), labels)
    assert with_impossible == pytest.approx(fit_temperature(log_probs, case.labels))
    assert fit_temperature(impossible, torch.ones(5, dtype=torch.long)) == 1.0


def test_saturated_mistakes_are_fitted_on_the_scale_of_the_logits():
    """Logits 0 and −2000, right on 3 of 4: the optimum is 2000 / ln 3."""
    log_probs = torch.tensor([[0.0, -2000.0]] * 4, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    temperature = fit_temperature(log_probs, labels)
    assert temperature == pytest.approx(2000 / math.log(3))
    assert nll(temper(log_probs, temperature), labels) == pytest.approx(
        -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    )


def test_several_models_are_fitted_at_once_as_alone(draw_case):
    """Among them one at each bound, one that keeps 1, and one with a label of probability 0."""
    labels = draw_case(0).labels
    models = [ensemble_log_probs(draw_case(0, scale=scale).logits) for scale in (1, 40)]
    right = torch.nn.functional.one_hot(labels, 10).double()
    models += [(3 * right).log_softmax(-1), (-3 * right).log_softmax(-1), (0 * right).log_softmax(-1)]
    models += [models[0].masked_fill((right == 1) & (torch.arange(120) < 9)[:, None], -torch.inf)]
    found = fit_temperatures(torch.stack(models), labels).tolist()
    assert found == pytest.approx([fit_temperature(each, labels) for each in models], rel=1e-9)
    assert found[2:5] == [*TEMPERATURE_BOUNDS, 1.0]
    assert len(set(found)) == 6


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_is_above_zero(temperature):
    with pytest.raises(ValueError, match="above 0"):
        temper(torch.zeros(1, 2), temperature)
