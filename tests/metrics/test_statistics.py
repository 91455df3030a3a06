from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from polyphony.metrics import (
    bootstrap,
    bootstrap_mean,
    columns,
    ece,
    ensemble_log_probs,
    format_mean_sd,
    mean_sd,
    nll,
)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_interval_of_a_mean_is_scipys():
    values = np.random.default_rng(0).exponential(size=400)
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1)
    ours = bootstrap_mean(torch.tensor(values), rng(), replicates=4000)
    # The Monte Carlo error of a bound is about 0.03 of the interval's width with 4000 replicates.
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.1 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.1 * width)


def test_a_wider_level_gives_a_wider_interval():
    values = torch.rand(100, generator=rng())
    narrow, wide = (bootstrap_mean(values, rng(1), 500, level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    source = np.random.default_rng(3)
    hits = 0
    for seed in range(60):
        interval = bootstrap_mean(torch.tensor(source.normal(size=80)), rng(seed), 300, 0.8)
        hits += interval.low <= 0 <= interval.high
    assert 37 <= hits <= 57  # 48 expected, a standard deviation of 3.1


def test_any_score_can_be_resampled(draw_case):
    case = draw_case(0)
    log_probs = ensemble_log_probs(case.logits)
    interval = bootstrap(lambda i: ece(log_probs[i], case.labels[i]), 120, rng(), 100)
    assert interval.value == ece(log_probs, case.labels)
    assert interval.low < interval.high
    by_column = bootstrap_mean(columns(*case).nll, rng(5), 50)
    by_score = bootstrap(lambda i: nll(log_probs[i], case.labels[i]), 120, rng(5), 50)
    for name in ("value", "low", "high"):
        assert getattr(by_column, name) == pytest.approx(getattr(by_score, name), rel=1e-12)


def test_one_example_and_infinite_scores_make_no_nan():
    assert bootstrap_mean(torch.tensor([2.0]), rng()).low == 2.0
    interval = bootstrap_mean(torch.tensor([0.0, math.inf, 1.0]), rng(), 50)
    assert (interval.value, interval.high) == (math.inf, math.inf)
    assert not math.isnan(interval.low)


def test_mean_and_sd_are_numpys():
    values = [0.18, 0.184, 0.191, 0.17]
    found = mean_sd(values)
    assert (found.n, found.mean, found.sd) == pytest.approx((4, np.mean(values), np.std(values, ddof=1)))
    assert format_mean_sd(found) == "0.181 ± 0.009"


def test_one_seed_has_no_deviation():
    found = mean_sd([0.25])
    assert math.isnan(found.sd)
    assert format_mean_sd(found, 2) == "0.25"
    assert math.isnan(mean_sd([0.25, math.inf]).sd)


def test_no_seed_has_no_mean():
    with pytest.raises(ValueError, match="at least one seed"):
        mean_sd([])
