from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from scipy.stats import dirichlet

from polyphony.metrics import DirichletPredictions, Predictions, entropy
from polyphony.metrics.uncertainty import dirichlet_information, dirichlet_kld

CASES = [[0.3, 0.8], [5.0, 1.0, 1.0], [0.2, 0.1, 3.0, 40.0], [30.0] * 10, [0.2] * 5]


def log_of(alpha: list[float]) -> torch.Tensor:
    return torch.tensor([alpha], dtype=torch.float64).log()


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return special.rel_entr(p, q).sum(-1)


@pytest.mark.parametrize("alpha", CASES, ids=str)
def test_closed_forms_are_what_draws_from_scipys_dirichlet_give(alpha):
    draws = dirichlet(alpha).rvs(400_000, random_state=np.random.default_rng(0))
    draws = np.maximum(draws, 1e-300)
    entropies = special.entr(draws).sum(-1)
    mean = np.array(alpha) / sum(alpha)
    information, divergence = (float(f(log_of(alpha))[0]) for f in (dirichlet_information, dirichlet_kld))
    assert information == pytest.approx(special.entr(mean).sum() - entropies.mean(), abs=5e-3)
    assert divergence == pytest.approx(kl(*np.split(draws, 2)).mean(), rel=2e-2)


def test_a_large_ensemble_drawn_from_the_dirichlet_has_its_scores():
    """What an ensemble's members are scored by, the Dirichlet's closed forms are the limit of."""
    alpha = [4.0, 2.0, 1.0]
    members = torch.from_numpy(dirichlet(alpha).rvs(20_000, random_state=np.random.default_rng(1))).log()
    drawn = Predictions(members[:, None], torch.tensor([0]))
    exact = DirichletPredictions(log_of(alpha)[None], torch.tensor([0]))
    assert drawn.mean_kld() == pytest.approx(exact.mean_kld(), rel=0.02)
    for name, value in drawn.uncertainties().items():
        assert float(value) == pytest.approx(float(exact.uncertainties()[name]), rel=0.02)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e9])
def test_a_sharp_dirichlets_information_keeps_its_digits(scale):
    """Σ_k p_k f(α_k) − f(α₀) ≈ (K − 1)/2α₀ − (Σ_k 1/p_k − 1)/12α₀²: the difference of entropies is lost."""
    alpha = scale * np.array([50.0, 30.0, 20.0])
    total, mean = alpha.sum(), alpha / alpha.sum()
    expected = 1 / total - ((1 / mean).sum() - 1) / (12 * total**2)
    found = float(dirichlet_information(log_of(alpha.tolist()))[0])
    assert found == pytest.approx(expected, rel=1e-5 / scale + 1e-12)


@pytest.mark.parametrize("a", [1e-6, 0.5, 29.999, 30.001, 1e4])
def test_one_formula_takes_over_from_the_other_without_a_step(a):
    alpha = np.array([a, 2 * a, 0.5 * a])
    total = alpha.sum()
    mean = alpha / total
    shared = -(mean * (special.digamma(alpha + 1) - special.digamma(total + 1))).sum()
    found = special.entr(mean).sum() - float(dirichlet_information(log_of(alpha.tolist()))[0])
    assert found == pytest.approx(shared, rel=1e-10, abs=1e-15)


@given(st.lists(st.floats(-8, 12), min_size=2, max_size=30))
def test_information_is_a_part_of_the_entropy_and_not_negative(log_alpha):
    values = torch.tensor([log_alpha], dtype=torch.float64)
    information = float(dirichlet_information(values)[0])
    assert 0 <= information <= float(entropy(values.log_softmax(-1))[0]) + 1e-12
    # KL(π ‖ π′) in expectation is the information and what the mean's own divergence adds to it.
    assert float(dirichlet_kld(values)[0]) >= information - 1e-12


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_float32_log_concentrations_are_read_in_float64(classes):
    values = 3 * torch.randn(50, classes, generator=torch.Generator().manual_seed(0))
    for score in (dirichlet_information, dirichlet_kld):
        assert torch.equal(score(values), score(values.double()))
        assert score(values).isfinite().all()
