from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from polyphony.metrics import ensemble_log_probs, reliability
from polyphony.metrics.calibration import ece


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


def test_ece_is_a_loop_over_bins(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        for bins in (1, 10, 15):
            expected = loop_ece(*confidence_and_outcome(log_probs, case.labels), bins)
            assert ece(log_probs, case.labels, bins) == pytest.approx(expected, abs=1e-12), name


def test_ece_is_netcals(draw_case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netcal's dependencies deprecate things at import
        from netcal.metrics import ECE
    for seed in range(3):
        case = draw_case(seed, examples=400)
        log_probs = ensemble_log_probs(case.logits)
        expected = ECE(15).measure(log_probs.exp().numpy(), case.labels.numpy())
        assert ece(log_probs, case.labels) == pytest.approx(expected, abs=1e-12)


def test_reliability_diagram_is_what_ece_sums(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        diagram = reliability(log_probs, case.labels)
        confidences, outcomes = confidence_and_outcome(log_probs, case.labels)
        for b in range(15):
            low, high = float(diagram.edges[b]), float(diagram.edges[b + 1])
            inside = (confidences - 1e-12 > low) & (confidences - 1e-12 <= high)
            assert diagram.count[b] == inside.sum(), name
            means = (diagram.confidence[b], confidences), (diagram.accuracy[b], outcomes)
            for found, each in means:
                expected = each[inside].mean() if inside.any() else math.nan
                assert float(found) == pytest.approx(expected, nan_ok=True), name


@pytest.mark.parametrize(("label", "expected"), [(0, 0.0), (1, 1.0)])
def test_certain_and_right_is_calibrated_certain_and_wrong_is_not(label, expected):
    log_probs, labels = torch.tensor([[0.0, -math.inf]] * 3), torch.full((3,), label)
    assert ece(log_probs, labels) == expected
