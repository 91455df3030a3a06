from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from polyphony.metrics import accuracy, ensemble_log_probs, nll
from polyphony.metrics.probabilities import member_log_probs
from polyphony.metrics.quality import brier


def test_log_probabilities_are_scipys(cases):
    for name, case in cases.items():
        exact = {"rtol": 1e-12, "atol": 1e-14, "err_msg": name}
        np.testing.assert_allclose(member_log_probs(case.logits), case.member_log_probs(), **exact)
        found = ensemble_log_probs(case.logits)
        np.testing.assert_allclose(found, case.log_probs(), **exact)
        assert found.dtype == torch.float64
        assert found.max() <= 0


def test_a_saturated_member_does_not_lose_the_others():
    logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
    np.testing.assert_allclose(ensemble_log_probs(logits), np.log([[0.5, 0.5]]))
    np.testing.assert_array_equal(member_log_probs(logits)[0], [[0.0, -2000.0]])


def test_accuracy_and_brier_are_sklearns_and_nll_scipys_unclipped(cases):
    for name, case in cases.items():
        log_probs, labels, probs = ensemble_log_probs(case.logits), case.labels, np.exp(case.log_probs())
        right = accuracy_score(labels, np.argmax(log_probs.numpy(), axis=-1))
        assert accuracy(log_probs, labels) == pytest.approx(right, abs=1e-15), name
        rows = zip(case.log_probs(), labels.tolist(), strict=True)
        expected = math.fsum(-row[label] for row, label in rows) / len(labels)
        assert nll(log_probs, labels) == pytest.approx(expected, rel=1e-12, abs=1e-14), name
        unhalved = brier_score_loss(
            labels, probs if probs.shape[1] > 2 else probs[:, 1], labels=range(probs.shape[1]),
            scale_by_half=False,
        )  # fmt: skip
        assert brier(log_probs, labels) == pytest.approx(unhalved, rel=1e-10, abs=1e-14), name


def test_a_label_of_probability_zero_costs_infinity_and_two():
    log_probs = torch.tensor([[0.0, -math.inf]])
    assert nll(log_probs, torch.tensor([1])) == math.inf
    assert brier(log_probs, torch.tensor([1])) == 2.0
    assert nll(log_probs, torch.tensor([0])) == brier(log_probs, torch.tensor([0])) == 0.0


@settings(max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 4),
    examples=st.integers(1, 30),
    classes=st.integers(2, 12),
)
def test_nll_is_sklearns_where_that_does_not_clip(draw_case, seed, members, examples, classes):
    case = draw_case(seed, members, examples, classes)
    expected = log_loss(case.labels, np.exp(case.log_probs()), labels=range(classes))
    assert nll(ensemble_log_probs(case.logits), case.labels) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("scale", [0.1, 30.0, 1000.0])
def test_an_ensemble_is_no_worse_than_its_members_on_average(draw_case, scale):
    """Jensen: NLL and Brier score are convex in the prediction."""
    case = draw_case(0, scale=scale)
    for score in (nll, brier):
        members = [score(ensemble_log_probs(member[None]), case.labels) for member in case.logits]
        assert score(ensemble_log_probs(case.logits), case.labels) <= np.mean(members) + 1e-12


@pytest.mark.parametrize(
    ("log_probs", "labels", "message"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2), r"\[examples classes\]"),
        (torch.zeros(0, 4), torch.zeros(0), r"\[examples classes\]"),
        (torch.zeros(3, 4), torch.zeros(2), "do not fit 3 predictions"),
        (torch.zeros(3, 4), torch.tensor([0, 1, 4]), r"0\.\.3"),
        (torch.full((3, 4), torch.nan), torch.zeros(3), "3 predictions are NaN"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(log_probs, labels, message):
    with pytest.raises(ValueError, match=message):
        accuracy(log_probs, labels)


@pytest.mark.parametrize(
    "logits", [torch.zeros(3, 4), torch.zeros(0, 3, 4), torch.full((2, 3, 4), torch.nan)]
)
def test_logits_that_are_not_predictions_are_refused(logits):
    with pytest.raises(ValueError, match=r"members examples classes|NaN"):
        member_log_probs(logits)
