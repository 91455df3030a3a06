from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import accuracy, aurc, ensemble_log_probs, risk_coverage


def loop_aurc(confidences, wrong):
    """Mean risk over coverages, where each tie's errors are spread evenly."""
    order = np.argsort(-confidences, kind="stable")
    errors = wrong[order].astype(float)
    for value in np.unique(confidences):
        tied = confidences[order] == value
        errors[tied] = errors[tied].mean()
    return np.mean([errors[: i + 1].mean() for i in range(len(errors))])


def parts(case):
    log_probs = ensemble_log_probs(case.logits)
    confidences = log_probs.exp().amax(-1).numpy().round(11)  # equal up to rounding is a tie
    return log_probs, confidences, (log_probs.argmax(-1) != case.labels).numpy()


def test_aurc_is_a_loop_over_coverages(case):
    log_probs, confidences, wrong = parts(case)
    assert aurc(log_probs, case.labels) == pytest.approx(loop_aurc(confidences, wrong), rel=1e-10, abs=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    pairs=st.lists(st.tuples(st.sampled_from([0.6, 0.7, 0.8]), st.booleans()), min_size=1, max_size=6),
)
def test_aurc_of_ties_is_the_mean_over_all_their_orders(pairs):
    confidences, right = zip(*pairs, strict=True)
    log_probs = torch.tensor([[c, 1 - c] for c in confidences], dtype=torch.float64).log()
    labels = torch.tensor([0 if r else 1 for r in right])
    areas = []
    for order in itertools.permutations(range(len(pairs))):
        ranked = [confidences[i] for i in order]
        if ranked == sorted(ranked, reverse=True):
            errors = np.array([not right[i] for i in order])
            areas.append(np.mean(errors.cumsum() / np.arange(1, len(errors) + 1)))
    assert aurc(log_probs, labels) == pytest.approx(np.mean(areas), abs=1e-12)


def test_risk_coverage_is_a_loop_over_thresholds(case):
    log_probs, confidences, wrong = parts(case)
    curve = risk_coverage(log_probs, case.labels)
    thresholds = np.unique(confidences)[::-1]
    np.testing.assert_allclose(curve.coverage, [(confidences >= t).mean() for t in thresholds], rtol=1e-12)
    np.testing.assert_allclose(curve.risk, [wrong[confidences >= t].mean() for t in thresholds], rtol=1e-12)


def test_everything_answered_risks_the_error_rate(case):
    log_probs = ensemble_log_probs(case.logits)
    curve = risk_coverage(log_probs, case.labels)
    assert curve.coverage[-1] == 1.0
    assert float(curve.risk[-1]) == pytest.approx(1 - accuracy(log_probs, case.labels), abs=1e-12)
