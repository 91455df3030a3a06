from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyphony.metrics import (
    columns,
    detect_unknown_logits,
    detect_unknown_tallies,
    diversity_bins,
    diversity_of,
    ensemble_log_probs,
    reliability,
    reliability_of,
    scores,
    tally,
    tally_unknown,
)
from polyphony.metrics.streaming import _rank

RANKED = {"adaptive_ece", "aurc"}


def cut(case, *ends):
    n = len(case.labels)
    bounds = sorted({0, *(end for end in ends if end < n), n})
    return [(case.logits[:, a:b], case.labels[a:b]) for a, b in itertools.pairwise(bounds)]


def tensors(value):
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        yield from tensors(part) if dataclasses.is_dataclass(part) else [part]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_tallied_scores_are_the_exact_ones(case, temperature):
    exact, found = scores(*case, temperature), tally(cut(case, 3, 50), temperature).scores()
    assert found.keys() == exact.keys()
    for name in exact.keys() - RANKED:
        assert found[name] == pytest.approx(exact[name], rel=1e-10, abs=1e-12), name


def spread_over_ties(values, doubt):
    """Values in order of doubt, averaged over examples whose doubt agrees in its first ten binary digits."""
    mantissa, exponent = np.frexp(doubt.astype(np.float32))
    key = exponent * 1024.0 + np.floor(1024 * mantissa)
    key[doubt.astype(np.float32) == 0] = -np.inf
    order = np.argsort(key, kind="stable")
    return np.array([values[key == k].mean() for k in key[order]])


def test_tallied_ranks_are_a_loop_over_rounded_doubts(case):
    each = columns(*case)
    doubt, wrong = 1 - each.confidence.numpy(), 1 - each.accuracy.numpy()
    found = tally(cut(case, 3, 50)).scores()
    errors = spread_over_ties(wrong, doubt)
    expected = np.mean([errors[: i + 1].mean() for i in range(len(errors))])
    assert found["aurc"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    pieces = np.repeat(spread_over_ties(wrong - doubt, doubt), 15).reshape(15, len(doubt)) / 15
    assert found["adaptive_ece"] == pytest.approx(np.abs(pieces.sum(1)).sum() / len(doubt), abs=1e-9)


def test_rounded_ranks_cost_little_where_examples_are_many(draw_case):
    case = draw_case(0, examples=20_000)
    exact, found = scores(*case), tally(cut(case, 9000)).scores()
    for name in RANKED:
        assert found[name] == pytest.approx(exact[name], abs=5e-4)


def test_tallied_diagrams_are_the_exact_ones(case):
    seen = tally(cut(case, 10, 11))
    pairs = [
        (reliability_of(seen.confidence), reliability(ensemble_log_probs(case.logits), case.labels)),
        (diversity_of(seen.diversity), diversity_bins(case.logits)),
    ]
    for found, exact in pairs:
        for ours, theirs in zip(tensors(found), tensors(exact), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), ends=st.lists(st.integers(1, 59), max_size=4))
def test_how_blocks_are_cut_does_not_matter(draw_case, seed, ends):
    case = draw_case(seed, 3, 60, 4)
    whole, parts = tally([(case.logits, case.labels)]), tally(cut(case, *ends))
    assert parts.examples == whole.examples == 60
    for ours, theirs in zip(tensors(parts), tensors(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_tallied_detection_is_near_the_exact_one(draw_case):
    known, unknown = draw_case(0, examples=400), draw_case(1, examples=300, scale=0.8)
    exact = detect_unknown_logits(known.logits, unknown.logits)
    seen = tally(cut(known, 100)).uncertainty
    found = detect_unknown_tallies(seen, tally_unknown(unknown.logits.split(90, dim=1)))
    for name, expected in exact.items():
        for field in dataclasses.fields(expected):
            assert getattr(found[name], field.name) == pytest.approx(getattr(expected, field.name), abs=0.01)


def test_confident_examples_are_still_told_apart():
    """Doubts of 1e-12 and 2e-12 are as different as 0.1 and 0.2."""
    sure, surer = (torch.tensor([[0.0, -g]]).expand(1, 50, 2) for g in (math.log(1e12), math.log(2e12)))
    found = detect_unknown_tallies(tally_unknown([surer]), tally_unknown([sure]))
    assert found["doubt"].auroc == 1.0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(0, 50), min_size=2, max_size=20))
def test_rounding_keeps_order_and_three_digits(values):
    values = sorted(values)
    ranks = _rank(torch.tensor(values, dtype=torch.float64)).tolist()
    assert ranks == sorted(ranks)
    for low, high, a, b in zip(values, values[1:], ranks, ranks[1:], strict=False):
        if a == b:
            assert high - low <= high * 2**-9 + 1e-37


def test_standard_errors_are_numpys(case):
    found = tally(cut(case, 30)).standard_errors()
    each = columns(*case)
    for name, value in found.items():
        column = getattr(each, name).numpy()
        if len(column) == 1 or not np.isfinite(column).all():
            assert math.isnan(value)
        else:
            expected = column.std(ddof=1) / math.sqrt(len(column))
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-8 * (1 + abs(column.mean())))


def test_a_tally_does_not_grow_with_examples(draw_case):
    few, many = (tally([tuple(draw_case(0, examples=n))]) for n in (1, 5000))
    sizes = [sum(t.nbytes for t in tensors(seen)) for seen in (few, many)]
    assert sizes[0] == sizes[1] < 16e6


def test_nothing_to_score_is_said():
    with pytest.raises(ValueError, match="no predictions"):
        tally([])
    with pytest.raises(ValueError, match="no predictions on unknown"):
        tally_unknown([])
