from __future__ import annotations

import numpy as np
import pytest
import torch

from polyphony.metrics import accuracy, ensemble_log_probs, member_log_probs


def test_members_and_ensemble_are_scipys(case):
    np.testing.assert_allclose(member_log_probs(case.logits), case.member_log_probs(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ensemble_log_probs(case.logits), case.log_probs(), rtol=1e-12, atol=1e-14)


def test_ensemble_is_a_distribution(case):
    log_probs = ensemble_log_probs(case.logits)
    assert log_probs.dtype == torch.float64
    assert log_probs.max() <= 0
    np.testing.assert_allclose(log_probs.exp().sum(-1), 1.0, rtol=1e-12)


def test_a_saturated_member_does_not_lose_the_others():
    logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
    np.testing.assert_allclose(ensemble_log_probs(logits), np.log([[0.5, 0.5]]))
    np.testing.assert_array_equal(member_log_probs(logits)[0], [[0.0, -2000.0]])


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
