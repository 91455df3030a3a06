from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from polyphony.metrics import detect, detect_unknown, detect_unknown_logits, ensemble_log_probs, uncertainties


def sklearn_fpr95(positive, scores):
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    return fpr[tpr >= 0.95].min()


def assert_is_sklearns(found, known, unknown):
    scores = np.concatenate([known, unknown])
    is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
    assert found.auroc == pytest.approx(roc_auc_score(is_unknown, scores), abs=1e-12)
    assert found.aupr == pytest.approx(average_precision_score(is_unknown, scores), abs=1e-12)
    assert found.aupr_known == pytest.approx(average_precision_score(1 - is_unknown, -scores), abs=1e-12)
    assert found.fpr95 == pytest.approx(sklearn_fpr95(is_unknown, scores), abs=1e-12)
    assert found.fpr95_known == pytest.approx(sklearn_fpr95(1 - is_unknown, -scores), abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    known=st.lists(st.integers(0, 8), min_size=1, max_size=45),
    unknown=st.lists(st.integers(2, 10), min_size=1, max_size=45),
)
def test_detection_is_sklearns_with_ties(known, unknown):
    known, unknown = np.array(known) / 7, np.array(unknown) / 7
    assert_is_sklearns(detect(torch.tensor(known), torch.tensor(unknown)), known, unknown)


def test_detection_by_each_uncertainty_is_sklearns(case, draw_case):
    members, _, classes = case.logits.shape
    other = draw_case(9, members, 50, classes, 0.5).logits
    known, unknown = uncertainties(case.logits), uncertainties(other)
    for name, found in detect_unknown(known, unknown).items():
        assert_is_sklearns(found, getattr(known, name).numpy(), getattr(unknown, name).numpy())


def test_doubt_ranks_as_negative_confidence(draw_case):
    known, unknown = draw_case(0).logits, draw_case(1, scale=0.5).logits
    confidences = [ensemble_log_probs(logits).exp().amax(-1) for logits in (known, unknown)]
    found = detect_unknown_logits(known, unknown)["doubt"]
    assert found == detect(-confidences[0], -confidences[1])


@pytest.mark.parametrize(("shift", "auroc", "fpr"), [(100, 1.0, 0.0), (-100, 0.0, 1.0)])
def test_perfect_and_perfectly_wrong(shift, auroc, fpr):
    found = detect(torch.arange(20.0), torch.arange(30.0) + shift)
    assert (found.auroc, found.fpr95, found.fpr95_known) == (auroc, fpr, fpr)


def test_no_information_is_chance():
    found = detect(torch.zeros(30), torch.zeros(10))
    assert (found.auroc, found.aupr, found.aupr_known, found.fpr95) == (0.5, 0.25, 0.75, 1.0)


def test_exactly_95_percent_is_enough():
    unknown = torch.tensor([0.0] + [2.0] * 19)
    assert detect(torch.ones(4), unknown).fpr95 == 0.0


def test_both_sides_are_needed():
    with pytest.raises(ValueError, match="one known and one unknown"):
        detect(torch.zeros(3), torch.zeros(0))
