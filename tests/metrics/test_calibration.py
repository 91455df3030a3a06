from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import adaptive_ece, classwise_ece, confidence, ece, ensemble_log_probs, reliability


def loop_ece(confidences, outcomes, bins):
    """Bin by bin, example by example."""
    error = 0.0
    for b in range(bins):
        inside = [
            (c, o)
            for c, o in zip(confidences, outcomes, strict=True)
            if b / bins < c - 1e-12 <= (b + 1) / bins or (b == 0 and c <= 1e-12)
        ]
        error += abs(math.fsum(o - c for c, o in inside))
    return error / len(confidences)


def confidence_and_outcome(log_probs, labels):
    return np.exp(log_probs.numpy().max(-1)), np.argmax(log_probs.numpy(), -1) == labels.numpy()


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_is_a_loop_over_bins(case, bins):
    log_probs = ensemble_log_probs(case.logits)
    expected = loop_ece(*confidence_and_outcome(log_probs, case.labels), bins)
    assert ece(log_probs, case.labels, bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ece_is_netcals(draw_case, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netcal's dependencies deprecate things at import
        from netcal.metrics import ECE
    case = draw_case(seed, examples=400)
    log_probs = ensemble_log_probs(case.logits)
    expected = ECE(15).measure(log_probs.exp().numpy(), case.labels.numpy())
    assert ece(log_probs, case.labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 15, 200])
def test_adaptive_ece_shares_examples_evenly(case, bins):
    """Each example cut into `bins` equal pieces: then every bin holds n whole pieces and nothing is left."""
    log_probs = ensemble_log_probs(case.logits)
    confidences, outcomes = confidence_and_outcome(log_probs, case.labels)
    confidences = confidences.round(11)  # equal confidences may differ by rounding: make them tie
    order = np.argsort(confidences, kind="stable")
    gaps = (confidences - outcomes)[order]
    for value in np.unique(confidences):
        tied = confidences[order] == value
        gaps[tied] = gaps[tied].mean()
    pieces = np.repeat(gaps, bins).reshape(bins, len(gaps)) / bins
    expected = np.abs(pieces.sum(1)).sum() / len(gaps)
    assert adaptive_ece(log_probs, case.labels, bins) == pytest.approx(expected, abs=1e-10)


def test_adaptive_ece_without_ties_is_a_loop_over_equal_chunks(draw_case):
    case = draw_case(1, examples=150)
    log_probs = ensemble_log_probs(case.logits)
    confidences, outcomes = confidence_and_outcome(log_probs, case.labels)
    chunks = np.array_split(np.argsort(confidences), 15)
    expected = sum(abs(confidences[c].mean() - outcomes[c].mean()) / 15 for c in chunks)
    assert adaptive_ece(log_probs, case.labels) == pytest.approx(expected, abs=1e-12)


def test_classwise_ece_is_a_loop_over_classes(case):
    log_probs = ensemble_log_probs(case.logits)
    probs, labels = log_probs.exp().numpy(), case.labels.numpy()
    classes = probs.shape[1]
    expected = np.mean([loop_ece(probs[:, k].tolist(), labels == k, 15) for k in range(classes)])
    assert classwise_ece(log_probs, case.labels) == pytest.approx(expected, abs=1e-12)


def test_reliability_diagram_is_what_ece_sums(case):
    log_probs = ensemble_log_probs(case.logits)
    diagram = reliability(log_probs, case.labels)
    confidences, outcomes = confidence_and_outcome(log_probs, case.labels)
    for b in range(15):
        low, high = float(diagram.edges[b]), float(diagram.edges[b + 1])
        inside = (confidences - 1e-12 > low) & (confidences - 1e-12 <= high)
        assert diagram.count[b] == inside.sum()
        if inside.any():
            assert diagram.confidence[b] == pytest.approx(confidences[inside].mean())
            assert diagram.accuracy[b] == pytest.approx(outcomes[inside].mean())
        else:
            assert diagram.confidence[b].isnan()
            assert diagram.accuracy[b].isnan()


@pytest.mark.parametrize(("label", "expected"), [(0, 0.0), (1, 1.0)])
def test_certain_and_right_is_calibrated_certain_and_wrong_is_not(label, expected):
    log_probs, labels = torch.tensor([[0.0, -math.inf]] * 3), torch.full((3,), label)
    for score in (ece, adaptive_ece, classwise_ece):
        assert score(log_probs, labels) == expected


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    examples=st.integers(1, 40),
    classes=st.integers(2, 6),
    bins=st.integers(1, 20),
)
def test_calibration_errors_do_not_depend_on_order(draw_case, seed, examples, classes, bins):
    case = draw_case(seed, 2, examples, classes)
    log_probs = ensemble_log_probs(case.logits.round())  # rounded logits tie
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    for score in (ece, adaptive_ece, classwise_ece):
        value = score(log_probs, case.labels, bins)
        assert 0 <= value <= 1 + 1e-12
        assert score(log_probs[order], case.labels[order], bins) == pytest.approx(value, abs=1e-12)
    overall = abs(
        float(confidence(log_probs).mean()) - float((log_probs.argmax(-1) == case.labels).double().mean())
    )
    assert overall <= adaptive_ece(log_probs, case.labels, bins) + 1e-12
