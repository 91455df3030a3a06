from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from polyphony.metrics import detect
from polyphony.metrics.detection import energy, max_logit


@settings(max_examples=60, derandomize=True)
@given(
    known=st.lists(st.integers(0, 8), min_size=1, max_size=45),
    unknown=st.lists(st.integers(2, 10), min_size=1, max_size=45),
)
def test_detection_is_sklearns_with_ties(known, unknown):
    known, unknown = np.array(known) / 7, np.array(unknown) / 7
    found = detect(torch.tensor(known), torch.tensor(unknown))
    scores, is_unknown = np.concatenate([known, unknown]), np.repeat([0, 1], [len(known), len(unknown)])
    fpr, tpr, _ = roc_curve(is_unknown, scores, drop_intermediate=False)
    assert found.auroc == pytest.approx(roc_auc_score(is_unknown, scores), abs=1e-12)
    assert found.aupr == pytest.approx(average_precision_score(is_unknown, scores), abs=1e-12)
    assert found.fpr95 == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


@pytest.mark.parametrize(("shift", "auroc", "fpr"), [(100, 1.0, 0.0), (-100, 0.0, 1.0)])
def test_perfect_and_perfectly_wrong(shift, auroc, fpr):
    found = detect(torch.arange(20.0), torch.arange(30.0) + shift)
    assert (found.auroc, found.fpr95) == (auroc, fpr)


def test_no_information_is_chance():
    found = detect(torch.zeros(30), torch.zeros(10))
    assert (found.auroc, found.aupr, found.fpr95) == (0.5, 0.25, 1.0)


def test_exactly_95_percent_is_enough():
    unknown = torch.tensor([0.0] + [2.0] * 19)
    assert detect(torch.ones(4), unknown).fpr95 == 0.0


def test_both_sides_are_needed():
    with pytest.raises(ValueError, match="one known and one unknown"):
        detect(torch.zeros(3), torch.zeros(0))


def test_energy_and_largest_logit_are_of_the_mean_logits(cases):
    for name, case in cases.items():
        mean = case.logits.double().numpy().mean(0)
        with np.errstate(divide="ignore"):
            expected = [-np.logaddexp.reduce(row) for row in mean]
        np.testing.assert_allclose(energy(case.logits), expected, rtol=1e-12, err_msg=name)
        assert max_logit(case.logits).tolist() == [-max(row) for row in mean], name


def test_nan_is_rejected():
    nan = torch.tensor([0.0, math.nan])
    with pytest.raises(ValueError, match="NaN"):
        detect(torch.zeros(2), nan)
    with pytest.raises(ValueError, match="NaN"):
        energy(nan[None, None])
