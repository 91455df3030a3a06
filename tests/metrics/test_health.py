from __future__ import annotations

import math

import pytest
import torch

from polyphony.metrics import Spread, Verdict, judge
from polyphony.metrics.health import judge_distribution


def check(logits, labels, teachers_kld=None, dee=None):
    return judge(Spread.of(logits, labels), teachers_kld, dee)


def members(spread, seed=0):
    """Four members around one predictor that is right on about two examples of three."""
    rng = torch.Generator().manual_seed(seed)
    shared = 3 * torch.randn(300, 10, generator=rng)
    labels = torch.where(
        torch.rand(300, generator=rng) < 0.6, shared.argmax(-1), torch.randint(10, (300,), generator=rng)
    )
    return shared + spread * torch.randn(4, 300, 10, generator=rng), labels


@pytest.mark.parametrize(
    ("spread", "verdict"), [(0.0, Verdict.COLLAPSED), (0.01, Verdict.COLLAPSED), (2.0, Verdict.DIVERSE)]
)
def test_collapse_is_seen(spread, verdict):
    health = check(*members(spread))
    assert health.verdict == verdict
    assert (" ".join(health.findings).count("they hardly differ") == 2) == (verdict == Verdict.COLLAPSED)


def test_more_spread_is_never_less_healthy():
    verdicts = [check(*members(spread)).verdict for spread in (0.0, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)]
    assert verdicts == sorted(verdicts)
    assert set(verdicts) == set(Verdict) - {Verdict.SINGLE}


def test_teachers_set_the_scale():
    logits, labels = members(1.0)
    kld = Spread.of(logits, labels).kld
    assert check(logits, labels, teachers_kld=kld).verdict == Verdict.DIVERSE
    assert check(logits, labels, teachers_kld=5 * kld).verdict == Verdict.WEAK
    far = check(logits, labels, teachers_kld=100 * kld)
    assert far.verdict == Verdict.WEAK  # though sure teachers have a large one: members name other classes
    assert "0.01 of the teachers'" in far.findings[1]


@pytest.mark.parametrize(
    ("dee", "verdict", "words"),
    [
        (0.8, Verdict.WEAK, "no better than one teacher (DEE 0.80)"),
        (2.5, Verdict.DIVERSE, "as well as 2.50 teachers"),
        (math.inf, Verdict.DIVERSE, "better than all the teachers"),
    ],
)
def test_dee_speaks_in_words(dee, verdict, words):
    health = check(*members(2.0), dee=dee)
    assert health.verdict == verdict
    assert words in health.findings[-1]


def test_one_member_is_no_ensemble_and_has_not_collapsed():
    logits, labels = members(2.0)
    health = check(logits[:1], labels, teachers_kld=1.0, dee=2.5)
    assert health.verdict == Verdict.SINGLE
    assert "one network by design" in health.findings[0]
    assert "as well as 2.50 teachers" in health.findings[1]


def test_a_spread_is_counted_pair_by_pair():
    logits, labels = members(1.0)
    named = logits.argmax(-1)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    differ = [float((named[i] != named[j]).double().mean()) for i, j in pairs]
    spread = Spread.of(logits, labels)
    assert spread.members == 4
    assert spread.disagreement == pytest.approx(sum(differ) / len(differ))
    assert spread.error == pytest.approx(float((named != labels).double().mean()))
    p = logits.double().softmax(-1)
    klds = [float((p[i] * (p[i] / p[j]).log()).sum(-1).mean()) for i, j in pairs]
    assert spread.kld == pytest.approx(sum(klds) / len(klds))


def test_members_that_are_never_wrong_are_not_blamed_for_agreeing():
    logits, _ = members(0.0)
    logits = logits * torch.tensor([1.0, 1.3, 1.6, 2.0])[:, None, None]
    health = check(logits, logits[0].argmax(-1))
    assert health.verdict == Verdict.DIVERSE
    assert "harder examples are needed" in health.findings[0]


def test_one_network_with_a_distribution_is_said_to_be_one():
    health = judge_distribution(0.5, teachers_kld=1.0, dee=2.5)
    assert health.verdict == Verdict.SINGLE
    assert "mean divergence of 0.5 nats, 0.50 of the teachers'" in health.findings[0]
    assert "as well as 2.50 teachers" in health.findings[1]
    assert judge_distribution(0.5).findings[0].endswith("0.5 nats.")


def test_every_prediction_can_be_judged(cases):
    assert not any("nan" in " ".join(check(*case).findings) for case in cases.values())
