from __future__ import annotations

import numpy as np
import pytest
import torch

from polyphony.analysis.snr import Moments, gradient_snr, signal_to_noise
from polyphony.distill.perturb import ODS, Gaussian
from polyphony.ensembles import Single


def naive(samples):
    """The ratio from the whole matrix samples × parameters."""
    mean, variance = samples.mean(0), samples.var(0, ddof=1)
    signal = max(0, mean @ mean - variance.sum() / len(samples))
    return np.sqrt(signal) / np.sqrt(np.linalg.norm(variance))


def test_moments_match_numpy_far_from_zero(rng):
    values = 1e6 + torch.randn(50, 7, generator=rng, dtype=torch.float64)
    moments = Moments()
    for value in values:
        moments.add(value)
    np.testing.assert_allclose(moments.mean, values.numpy().mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.variance, values.numpy().var(0, ddof=1), rtol=1e-9)


def test_a_single_sample_has_no_variance():
    moments = Moments()
    moments.add(torch.ones(2))
    with pytest.raises(ValueError, match="two samples"):
        signal_to_noise(moments)


@pytest.mark.parametrize("perturb", [Gaussian(1.0), ODS(1.0), ODS(0.5, scale_by_confidence=True)])
def test_the_stream_gives_what_the_matrix_of_samples_gives(linear_ensemble, linear_student, images, perturb):
    teachers, student, labels = linear_ensemble(3), linear_student, torch.zeros(5, dtype=torch.int64)
    found = gradient_snr(
        student, teachers, images, labels, perturb, 4.0, torch.Generator().manual_seed(1), 20
    )

    def gradient(x):
        """Member by member, example by example: τ² Σ_k p_k (log p_k − log q_k), mean over both."""
        student.zero_grad()
        terms = []
        for j in range(3):
            log_p = (teachers.networks[j](x) / 4).log_softmax(-1).detach()
            log_q = (student(x.expand(3, *x.shape))[j] / 4).log_softmax(-1)
            terms += [16 * (p.exp() * (p - q)).sum() for p, q in zip(log_p, log_q, strict=True)]
        (sum(terms) / len(terms)).backward()
        return torch.cat([p.grad.flatten() for p in student.parameters()]).numpy().copy()

    rng = torch.Generator().manual_seed(1)
    draws = (perturb(images, labels, teachers, student, 4.0, rng) for _ in range(20))
    rows = [gradient(x_tilde) - gradient(images) for x_tilde in draws]
    rows = np.array(rows)
    assert found.unbiased == pytest.approx(naive(rows), rel=1e-7)
    assert found.literal == pytest.approx(
        np.linalg.norm(rows.mean(0)) / np.sqrt(np.linalg.norm(rows.var(0, ddof=1))), rel=1e-7
    )
    assert found.literal > found.unbiased > 0


def test_the_ratio_of_a_linear_softmax_student_is_the_closed_form(linear_ensemble, images):
    """ε = 2δ, δ in turn: E[G] and Var[G] are from ∇_W KL = (q − p) xᵀ, ∇_b KL = q − p at the two points."""
    teachers, student = linear_ensemble(1), Single(linear_ensemble(1).networks[0].requires_grad_())
    steps = iter([0.02, 0.01] * 5)

    def alternate(x, y, teachers, student, temperature, rng):
        return x + next(steps)

    def written_down(x):
        flat = x.flatten(1).numpy()
        p, q = (net(x).softmax(-1).detach().numpy() for net in (teachers.networks[0], student.network))
        return np.concatenate([((q - p).T @ flat / len(flat)).ravel(), (q - p).mean(0)])

    up, down = (written_down(images + step) - written_down(images) for step in (0.02, 0.01))
    variance = ((up - down) / 2) ** 2 * 10 / 9
    length = np.sum(((up + down) / 2) ** 2) - variance.sum() / 10
    expected = np.sqrt(length) / np.sqrt(np.linalg.norm(variance))
    rng = torch.Generator().manual_seed(0)
    found = gradient_snr(student, teachers, images, torch.zeros(5), alternate, 1.0, rng, 10)
    assert found.unbiased == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("length", [0.0, 1.0, 4.0])
def test_the_ratio_does_not_depend_on_how_many_samples_there_are(rng, length):
    """Vectors around a mean of known length with unit variance: the true ratio is length / p^¼."""
    parameters, samples, values = 400, 20, []
    for _ in range(200):
        moments = Moments()
        for _ in range(samples):
            noise = torch.randn(parameters, generator=rng, dtype=torch.float64)
            moments.add(noise + length / parameters**0.5)
        values.append(signal_to_noise(moments).unbiased)
    # ‖s²‖₂ of sample variances is larger than ‖σ²‖₂ by √(1 + 2 / (samples − 1)), whatever the mean.
    noise = (parameters * (1 + 2 / (samples - 1))) ** 0.5
    assert np.mean(values) == pytest.approx(
        length / noise**0.5, abs=0.11
    )  # √20 / p^¼ more with the mean's noise


def test_gradients_without_noise_have_an_infinite_ratio():
    moments = Moments()
    moments.add(torch.ones(3))
    moments.add(torch.ones(3))
    assert signal_to_noise(moments) == (float("inf"), float("inf"))


def test_no_gradients_at_all_have_no_signal():
    moments = Moments()
    moments.add(torch.zeros(3))
    moments.add(torch.zeros(3))
    assert signal_to_noise(moments) == (0, 0)
