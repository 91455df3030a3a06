from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polyphony.metrics import ensemble_log_probs
from polyphony.metrics.conformal import APS, SetRule, lac, set_quality, two_parts
from polyphony.metrics.temperature import fit_temperature, temper

SCORES = {"lac": lac, "aps": APS(), "raps": APS(penalty=0.1, free=2)}


def loop_score(probs, k, name):
    """The score of class k of one image, by hand."""
    if name == "lac":
        return -math.log(probs[k])
    order = sorted(range(len(probs)), key=lambda other: (-probs[other], other))
    rank = order.index(k)
    above = sum(probs[other] for other in order[:rank])
    return above + (0.1 * max(0, rank + 1 - 2) if name == "raps" else 0)


def loop_threshold(scores, coverage):
    place = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return sorted(scores)[place - 1] if place <= len(scores) else math.inf


@pytest.mark.parametrize("name", SCORES)
def test_sets_are_a_loop_over_images_and_classes(draw_case, name):
    valid, test = (
        draw_case(0, examples=90, classes=4, scale=1.0),
        draw_case(1, examples=30, classes=4, scale=1.0),
    )
    log_probs, new = ensemble_log_probs(valid.logits), ensemble_log_probs(test.logits)
    fit, rest = two_parts(90)
    tau = fit_temperature(log_probs[fit], valid.labels[fit])
    calm = temper(log_probs, tau).exp().numpy()
    scores = [loop_score(calm[i], int(valid.labels[i]), name) for i in rest.tolist()]
    rule = SetRule.calibrated(log_probs, valid.labels, SCORES[name])
    for coverage in (0.5, 0.9, 0.95):
        limit = loop_threshold(scores, coverage)
        assert rule.threshold(coverage) == pytest.approx(limit, abs=1e-12)
        expected = [
            [loop_score(p, k, name) <= limit + 1e-12 for k in range(4)]
            for p in temper(new, tau).exp().numpy()
        ]
        assert rule.sets(new, coverage).tolist() == expected


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_coverage_over_a_thousand_random_splits_is_what_was_asked_for(draw_case, name, coverage):
    """Its mean lies in [c, c + 1/(n + 1)], its variance over splits is about c (1 − c) / (n + 2)."""
    case = draw_case(2, examples=600, classes=6, scale=1.0, known=0.3)
    scores = SCORES[name](ensemble_log_probs(case.logits)).gather(1, case.labels[:, None])[:, 0]
    rng, n = np.random.default_rng(0), 99
    covered = []
    for _ in range(1000):
        order = torch.from_numpy(rng.permutation(600))
        rule = SetRule(scores[order[:n]].sort().values, 1.0, 0)
        covered.append(float((scores[order[n:]] <= rule.threshold(coverage)).double().mean()))
    spread = math.sqrt(coverage * (1 - coverage) / (n + 2))
    assert (
        coverage - 4 * spread / math.sqrt(1000)
        <= np.mean(covered)
        <= coverage + 0.01 + 4 * spread / math.sqrt(1000)
    )
    assert np.std(covered) == pytest.approx(spread, rel=0.25)


def test_aps_always_holds_the_most_probable_class_and_grows_with_doubt():
    log_probs = torch.tensor([[0.9, 0.06, 0.04], [0.4, 0.35, 0.25]]).log()
    rule = SetRule(torch.full((9,), 0.5).double(), 1.0, 0, APS())
    assert rule.sets(log_probs, 0.5).tolist() == [[True, False, False], [True, True, False]]


def test_a_penalty_gives_smaller_sets():
    log_probs = torch.full((1, 5), 0.2).log()
    scores = torch.full((9,), 0.7).double()
    sizes = [int(SetRule(scores, 1.0, 0, APS(each)).sets(log_probs, 0.5).sum()) for each in (0.0, 0.1)]
    assert sizes == [4, 3]


def test_validation_images_are_divided_once():
    fit, rest = two_parts(10)
    assert (len(fit), len(rest)) == (2, 8)
    assert sorted([*fit.tolist(), *rest.tolist()]) == list(range(10))
    assert torch.equal(two_parts(10)[0], fit)


def test_the_threshold_does_not_see_the_images_that_fitted_the_temperature(draw_case):
    case = draw_case(0, examples=80)
    log_probs, (fit, _) = ensemble_log_probs(case.logits), two_parts(80)
    rule = SetRule.calibrated(log_probs, case.labels)
    assert (rule.fitted, len(rule.scores)) == (20, 60)
    changed = log_probs.clone()
    changed[fit] = temper(log_probs[fit], rule.temperature)  # is then calibrated already
    other = SetRule.calibrated(changed, case.labels)
    assert other.temperature == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(SetRule.calibrated(log_probs, case.labels).scores, rule.scores)


def test_too_few_images_give_sets_of_all_classes(draw_case):
    case = draw_case(0, examples=12)
    log_probs = ensemble_log_probs(case.logits)
    rule = SetRule.calibrated(log_probs, case.labels)
    assert rule.threshold(0.95) == math.inf
    assert bool(rule.sets(log_probs, 0.95).all())


def test_degenerate_predictions(cases):
    for name, case in cases.items():
        log_probs = ensemble_log_probs(case.logits)
        for score in SCORES.values():
            rule = SetRule.calibrated(log_probs, case.labels, score)
            found = set_quality(rule.sets(log_probs, 0.9), case.labels)
            rest = two_parts(len(case.labels))[1]
            kept = set_quality(rule.sets(log_probs[rest], 0.9), case.labels[rest])
            assert kept.coverage >= 0.9, name  # at least ⌈(n + 1) c⌉ of n hold their label
            assert 0 <= found.coverage <= 1, name
            assert 0 <= found.size <= log_probs.shape[1], name


def test_quality_of_sets_is_counted():
    sets = torch.tensor(
        [[True, False, False], [True, True, False], [False, False, False], [True, True, True]]
    )
    found = set_quality(sets, torch.tensor([0, 2, 1, 1]))
    assert (found.n, found.coverage, found.size, found.empty) == (4, 0.5, 1.5, 0.25)


def test_impossible_input_is_rejected(draw_case):
    case = draw_case(0)
    log_probs = ensemble_log_probs(case.logits)
    for coverage in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            SetRule.calibrated(log_probs, case.labels).threshold(coverage)
    log_probs[3, 1] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        SetRule.calibrated(log_probs, case.labels)
