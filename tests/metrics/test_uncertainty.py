from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from polyphony.metrics import ensemble_log_probs, entropy
from polyphony.metrics.probabilities import member_log_probs
from polyphony.metrics.uncertainty import information


def test_entropy_and_mutual_information_are_scipys(cases):
    for name, case in cases.items():
        members, mean = np.exp(case.member_log_probs()), np.exp(case.log_probs())
        of_mean, of_members = scipy.stats.entropy(mean, axis=-1), scipy.stats.entropy(members, axis=-1)
        near = {"rtol": 1e-9, "atol": 1e-12, "err_msg": name}
        np.testing.assert_allclose(entropy(ensemble_log_probs(case.logits)), of_mean, **near)
        found = information(member_log_probs(case.logits))
        np.testing.assert_allclose(found, of_mean - of_members.mean(0), **near)
        assert found.min() >= 0
        assert found.max() <= math.log(len(members)) + 1e-12


def test_certain_members_that_all_differ_hold_ln_m():
    log_probs = member_log_probs(1000 * torch.eye(4)[:, None])
    assert float(information(log_probs)) == pytest.approx(math.log(4))
    assert entropy(log_probs).max() == 0.0
