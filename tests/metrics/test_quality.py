from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from polyphony.metrics import accuracy, brier, ensemble_log_probs, nll, top_k_accuracy


def test_accuracy_is_sklearns(case):
    log_probs = ensemble_log_probs(case.logits)
    expected = accuracy_score(case.labels, np.argmax(log_probs.numpy(), axis=-1))
    assert accuracy(log_probs, case.labels) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("size", [1, 2, 5, 2000])
def test_top_k_is_a_loop_over_ranked_classes(case, size):
    log_probs = ensemble_log_probs(case.logits)
    hits = 0
    for row, label in zip(log_probs.tolist(), case.labels.tolist(), strict=True):
        ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
        hits += label in ranked[:size]
    assert top_k_accuracy(log_probs, case.labels, size) == pytest.approx(hits / len(log_probs), abs=1e-15)


def test_top_one_is_accuracy(case):
    log_probs = ensemble_log_probs(case.logits)
    assert top_k_accuracy(log_probs, case.labels, 1) == accuracy(log_probs, case.labels)


def test_nll_is_scipys_unclipped(case):
    rows = zip(case.log_probs(), case.labels.tolist(), strict=True)
    expected = math.fsum(-row[label] for row, label in rows) / len(case.labels)
    assert nll(ensemble_log_probs(case.logits), case.labels) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_brier_is_sklearns_unhalved(case):
    probs = np.exp(case.log_probs())
    expected = brier_score_loss(
        case.labels,
        probs if probs.shape[1] > 2 else probs[:, 1],
        labels=range(probs.shape[1]),
        scale_by_half=False,
    )
    assert brier(ensemble_log_probs(case.logits), case.labels) == pytest.approx(
        expected, rel=1e-10, abs=1e-14
    )


def test_a_label_of_probability_zero_costs_infinity_and_two():
    log_probs = torch.tensor([[0.0, -math.inf]])
    assert nll(log_probs, torch.tensor([1])) == math.inf
    assert brier(log_probs, torch.tensor([1])) == 2.0
    assert nll(log_probs, torch.tensor([0])) == brier(log_probs, torch.tensor([0])) == 0.0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 4),
    examples=st.integers(1, 30),
    classes=st.integers(2, 12),
)
def test_nll_is_sklearns_where_that_does_not_clip(draw_case, seed, members, examples, classes):
    case = draw_case(seed, members, examples, classes)
    log_probs = ensemble_log_probs(case.logits)
    expected = log_loss(case.labels, np.exp(case.log_probs()), labels=range(classes))
    assert nll(log_probs, case.labels) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 1.0, 30.0, 1000.0]))
def test_an_ensemble_is_no_worse_than_its_members_on_average(draw_case, seed, scale):
    """Jensen: NLL and Brier score are convex in the prediction."""
    case = draw_case(seed, 3, 20, 5, scale)
    for score in (nll, brier):
        members = [score(ensemble_log_probs(member[None]), case.labels) for member in case.logits]
        assert score(ensemble_log_probs(case.logits), case.labels) <= np.mean(members) + 1e-12
