from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polyphony import metrics
from polyphony.metrics import columns, ensemble_log_probs, in_blocks, means, member_log_probs, scores, temper
from polyphony.metrics import columns as exported
from polyphony.metrics.quality import nll


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_scores_are_each_functions_own(case, temperature):
    found = scores(*case, temperature)
    log_probs = temper(ensemble_log_probs(case.logits), temperature)
    of_prediction = {
        name: getattr(metrics, name)(log_probs, case.labels)
        for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")
    }
    of_members = {
        "kld": metrics.mean_kld(case.logits),
        "disagreement": metrics.disagreement(case.logits),
        "mutual_information": metrics.mutual_information(case.logits),
        "member_entropy": metrics.member_entropy(case.logits),
    }
    top5 = {"top5": metrics.top_k_accuracy(log_probs, case.labels)}
    for name, expected in (of_prediction | of_members | top5).items():
        assert found[name] == pytest.approx(expected, rel=1e-10, abs=1e-12), name
    assert not any(math.isnan(value) for value in found.values())


def test_member_columns_are_loops_over_members(case):
    found = means(columns(*case))
    members = member_log_probs(case.logits)
    assert found["member_nll"] == pytest.approx(np.mean([nll(m, case.labels) for m in members]), rel=1e-12)
    accuracies = [metrics.accuracy(m, case.labels) for m in members]
    assert found["member_accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-12)


def test_blocks_cover_every_example_once_and_change_nothing(case, monkeypatch):
    whole = scores(*case)
    monkeypatch.setattr("polyphony.metrics.scoring.BLOCK_ELEMENTS", 7 * case.logits[:, 0].numel())
    blocks = list(in_blocks(*case))
    assert torch.equal(torch.cat([labels for _, labels in blocks]), case.labels)
    assert torch.equal(torch.cat([logits for logits, _ in blocks], 1), case.logits)
    assert max(len(labels) for _, labels in blocks) <= 7
    assert scores(*case) == pytest.approx(whole, rel=1e-10, abs=1e-12)


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"\[2\] labels do not fit"):
        exported(torch.zeros(2, 3, 4), torch.zeros(2))
