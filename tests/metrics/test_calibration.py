from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from polyphony.metrics import ensemble_log_probs, reliability
from polyphony.metrics.calibration import adaptive_ece, class_wise_ece, ece, group_scores


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


def test_adaptive_ece_is_netcals_with_bins_of_equal_counts(draw_case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import ECE
    for seed in range(3):
        case = draw_case(seed, examples=15 * 30)
        log_probs = ensemble_log_probs(case.logits)
        expected = ECE(15, equal_intervals=False).measure(log_probs.exp().numpy(), case.labels.numpy())
        assert adaptive_ece(log_probs, case.labels) == pytest.approx(expected, abs=1e-12)


def loop_adaptive_ece(confidences, outcomes, bins):
    """Bins of equal counts, equal confidences in the mean over their places."""
    n, error = len(confidences), 0.0
    order = sorted(range(n), key=lambda i: confidences[i])
    mean = {
        c: np.mean([o for d, o in zip(confidences, outcomes, strict=True) if d == c]) for c in confidences
    }
    for b in range(bins):
        inside = order[b * n // bins : (b + 1) * n // bins]
        error += abs(math.fsum(confidences[i] - mean[confidences[i]] for i in inside))
    return error / n


def test_adaptive_ece_is_a_loop_over_bins(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        for bins in (1, 7, 15):
            expected = loop_adaptive_ece(*confidence_and_outcome(log_probs, case.labels), bins)
            assert adaptive_ece(log_probs, case.labels, bins) == pytest.approx(expected, abs=1e-10), name


def test_class_wise_ece_is_a_loop_over_classes(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        probs, labels = log_probs.exp().numpy(), case.labels.numpy()
        each = [loop_ece(probs[:, k], labels == k, 15) for k in range(probs.shape[1])]
        assert class_wise_ece(log_probs, case.labels) == pytest.approx(np.mean(each), abs=1e-12), name


def test_group_scores_are_scores_of_each_groups_images(draw_case):
    case = draw_case(0, examples=200, classes=4)
    log_probs, groups = ensemble_log_probs(case.logits), torch.arange(200) % 3 * 10
    found = group_scores(log_probs, case.labels, groups)
    assert list(found) == [0, 10, 20]
    for group, each in found.items():
        rows = (groups == group).numpy()
        confidences, outcomes = confidence_and_outcome(log_probs[rows], case.labels[rows])
        assert (each.n, each.acc) == (rows.sum(), pytest.approx(outcomes.mean()))
        assert each.ece == pytest.approx(loop_ece(confidences, outcomes, 15), abs=1e-12)
        assert each.confidence == pytest.approx(confidences.mean())
        answers = log_probs[rows].argmax(-1).tolist()
        errors = [
            pair for pair in zip(case.labels[rows].tolist(), answers, strict=True) if pair[0] != pair[1]
        ]
        most = max(map(errors.count, errors))
        assert each.confused == most
        assert each.confusion == min(pair for pair in errors if errors.count(pair) == most)


def test_a_group_without_errors_has_no_confusion(cases):
    for name in ("all right", "all wrong", "one class seen"):
        case = cases[name]
        log_probs = ensemble_log_probs(case.logits)
        for label, each in group_scores(log_probs, case.labels, case.labels).items():
            assert (each.confusion is None) == (each.acc == 1), name
            assert each.confusion is None or each.confusion[0] == label, name


def test_what_is_no_prediction_is_rejected(draw_case):
    case = draw_case(0)
    log_probs = ensemble_log_probs(case.logits)
    with pytest.raises(ValueError, match="groups do not fit"):
        group_scores(log_probs, case.labels, case.labels[1:])
    log_probs[0, 0] = math.nan
    for score in (adaptive_ece, class_wise_ece):
        with pytest.raises(ValueError, match="NaN"):
            score(log_probs, case.labels)
