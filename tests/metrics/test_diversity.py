from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from polyphony.metrics import Predictions, disagreement
from polyphony.metrics.probabilities import member_log_probs
from polyphony.metrics.uncertainty import pairwise_kld


def loop_kld(log_probs):
    """KL(p_j ‖ p_i) over ordered pairs, class by class, with 0·(log 0 − anything) = 0. [m n k] → [n]"""
    pairs = list(itertools.permutations(range(len(log_probs)), 2))
    total = np.zeros(log_probs.shape[1])
    for i, j in pairs:
        with np.errstate(invalid="ignore"):
            terms = np.exp(log_probs[j]) * (log_probs[j] - log_probs[i])
        terms[np.isneginf(log_probs[j])] = 0.0
        total += terms.sum(-1)
    return total / max(len(pairs), 1)


def mean_kld(logits: torch.Tensor) -> float:
    return Predictions(logits, torch.zeros(logits.shape[1], dtype=torch.long)).mean_kld()


def test_kld_is_a_loop_over_pairs(cases):
    for name, case in cases.items():
        expected = loop_kld(case.member_log_probs())
        found = pairwise_kld(member_log_probs(case.logits))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=name)


def test_kld_is_scipys(draw_case):
    case = draw_case(0, members=3)
    p = case.logits.double().softmax(-1).numpy()
    expected = np.mean([rel_entr(p[j], p[i]).sum(-1).mean() for i, j in itertools.permutations(range(3), 2)])
    assert mean_kld(case.logits) == pytest.approx(expected, rel=1e-10)


def test_identical_members_have_no_diversity(draw_case):
    logits = draw_case(0, members=1).logits.expand(3, -1, -1)
    assert mean_kld(logits) == pytest.approx(0.0, abs=1e-30)
    assert disagreement(logits) == 0.0


def test_close_members_keep_their_relative_precision():
    """Members p and p + δv: Σ of both divergences → δ² Σ v²/p; a difference of entropies would be noise."""
    p, v, delta = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([1.0, -0.4, -0.6]).double(), 1e-9
    log_probs = torch.stack([p.log(), p.log() + torch.log1p(delta * v / p)])[:, None]
    expected = delta**2 * float((v.square() / p).sum()) / 2
    assert float(pairwise_kld(log_probs)) == pytest.approx(expected, rel=1e-5)


def test_rounding_makes_no_negative_divergence():
    """Members that differ in their last digit alone: unguarded, one sum in a hundred is below 0."""
    rng = torch.Generator().manual_seed(0)
    base = 1e-8 * torch.randn(20_000, 5, generator=rng, dtype=torch.float64)
    members = base + 1e-16 * torch.randn(5, 20_000, 5, generator=rng, dtype=torch.float64)
    assert float(pairwise_kld(members.log_softmax(-1)).min()) >= 0


def test_a_class_only_one_member_excludes_is_infinitely_far():
    logits = torch.tensor([[[0.0, -math.inf, -math.inf]], [[0.0, 0.0, -math.inf]]])
    assert mean_kld(logits) == math.inf
    assert mean_kld(logits[:, :, [0, 2]]) == 0.0


def test_opposed_certainties_are_as_far_as_their_logits():
    logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
    assert mean_kld(logits) == 2000.0
    assert disagreement(logits) == 1.0


def test_disagreement_is_a_loop_over_pairs(cases):
    for name, case in cases.items():
        votes = np.argmax(case.member_log_probs(), -1)
        pairs = list(itertools.combinations(range(len(votes)), 2))
        expected = np.mean([(votes[i] != votes[j]).mean() for i, j in pairs]) if pairs else 0.0
        assert disagreement(case.logits) == pytest.approx(expected, abs=1e-14), name


def test_diversity_plot_is_a_loop_over_bins(cases):
    for name, case in cases.items():
        least = np.exp(member_log_probs(case.logits).numpy().max(-1)).min(0)
        kld = loop_kld(case.member_log_probs())
        plot = Predictions(*case).diversity_bins()
        for b in range(15):
            inside = (least - 1e-12 > plot.edges[b].item()) & (least - 1e-12 <= plot.edges[b + 1].item())
            assert plot.count[b] == inside.sum(), name
            expected = kld[inside].mean() if inside.any() else math.nan
            near = pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)
            assert plot.kld[b].item() == near, name


@settings(max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(2, 5),
    scale=st.sampled_from([1e-3, 1.0, 50.0, 1000.0]),
    bins=st.integers(1, 30),
)
def test_mean_kld_is_the_plots_mean_weighted_by_counts(draw_case, seed, members, scale, bins):
    case = draw_case(seed, members, 40, 5, scale)
    plot = Predictions(*case).diversity_bins(bins)
    filled = plot.count > 0
    expected = float((plot.count * plot.kld)[filled].sum() / plot.count.sum())
    assert mean_kld(case.logits) == pytest.approx(expected, rel=1e-10)
    order = torch.randperm(members, generator=torch.Generator().manual_seed(seed))
    assert mean_kld(case.logits[order]) == pytest.approx(expected, rel=1e-9)
