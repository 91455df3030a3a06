"""Deep latent factors against dense matrices in float64, draws and numerical integrals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from cases import CLASSES, MEMBERS, network, seeded, teachers
from polyphony.distill import DistillFactors
from polyphony.distill.latent_factor import discrepancy, expected_square, posterior
from polyphony.ensembles import DeepEnsemble, LatentFactor, Single
from polyphony.ensembles.latent_factor import deviations

DOUBLE = torch.float64
ROWS, K, Q, M = 7, 3, 2, 4


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=DOUBLE)


RESIDUAL, FEATURES = numbers(M, ROWS, K, seed=1), numbers(ROWS, Q, seed=2)
LOWER, VARIANCE = numbers(K, K, seed=3).tril(), torch.tensor(0.37, dtype=DOUBLE)


def dense() -> tuple[Tensor, Tensor, Tensor]:
    """B = Φ ⊗ L, the covariance (I + BᵀB/σ²)⁻¹, and the mean of vec Z_i, columns one after the other."""
    b = torch.kron(FEATURES, LOWER)  # [b k, q k]
    covariance = (torch.eye(K * Q, dtype=DOUBLE) + b.T @ b / VARIANCE).inverse()
    return b, covariance, RESIDUAL.reshape(M, -1) @ b @ covariance / VARIANCE


def test_the_posterior_is_that_of_a_dense_inverse():
    found, (_, covariance, mean) = posterior(RESIDUAL, FEATURES, LOWER, VARIANCE), dense()
    torch.testing.assert_close(found.mean.mT.reshape(M, -1), mean, rtol=1e-10, atol=1e-12)
    vectors = torch.kron(found.right, found.left)
    rebuilt = vectors @ found.variances.T.reshape(-1).diag() @ vectors.T
    torch.testing.assert_close(rebuilt, covariance, rtol=1e-10, atol=1e-12)


def test_the_expected_square_and_its_gradients_are_those_of_dense_matrices():
    found, (_, covariance, mean) = posterior(RESIDUAL, FEATURES, LOWER, VARIANCE), dense()
    mine, its = ([each.clone().requires_grad_() for each in (FEATURES, LOWER)] for _ in range(2))
    value = expected_square(RESIDUAL, *mine, found)
    b = torch.kron(*its)
    errors = (RESIDUAL.reshape(M, -1) - mean @ b.T).square().sum() + M * (b @ covariance @ b.T).trace()
    expected = errors / RESIDUAL.numel()
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    for one, other in zip(torch.autograd.grad(value, mine), torch.autograd.grad(expected, its), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_step_of_em_never_lowers_the_likelihood():
    """With σ² in closed form, as the M-step of σ² alone."""

    def likelihood(variance: Tensor) -> Tensor:
        b = torch.kron(FEATURES, LOWER)
        covariance = b @ b.T + variance * torch.eye(len(b), dtype=DOUBLE)
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(b), dtype=DOUBLE), covariance)
        return normal.log_prob(RESIDUAL.reshape(M, -1)).sum()

    variance = torch.tensor(3.0, dtype=DOUBLE)
    for _ in range(20):
        found = posterior(RESIDUAL, FEATURES, LOWER, variance)
        after = expected_square(RESIDUAL, FEATURES, LOWER, found)
        assert likelihood(after) >= likelihood(variance) - 1e-9
        variance = after


def test_the_discrepancy_is_that_of_draws():
    z, drawn = numbers(5, Q, seed=4) + 0.5, numbers(4000, Q, seed=5)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(a, b).square() / (2 * Q)).mean()

    expected = kernel(z, z) - 2 * kernel(z, drawn) + kernel(drawn, numbers(4000, Q, seed=6))
    assert float(discrepancy(z)) == pytest.approx(float(expected), abs=0.01)
    many = numbers(2000, Q, seed=7)
    assert 0 < float(discrepancy(many)) < 0.002 < float(discrepancy(many + 0.3))


def test_what_is_apart_from_the_mean_has_the_variance_of_one():
    each = numbers(3, 200_000, seed=8)
    assert float(deviations(each).square().mean()) == pytest.approx(1, abs=0.01)
    assert float(deviations(each).mean(0).abs().max()) < 1e-12


def test_the_mean_of_the_members_is_the_networks_mean():
    student = LatentFactor(network(3, extra=2), CLASSES, MEMBERS, factors=2, draws=5, seed=5).double().eval()
    student.scale.data.copy_(numbers(CLASSES, CLASSES, seed=9))
    x = torch.rand(4, 1, 5, 5, generator=seeded())
    torch.testing.assert_close(student.ask_all(x).mean(0), student.network(x)[:, :CLASSES])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_draws_of_pure_noise_differ_as_much_as_teachers_of_pure_noise(classes):
    """Logits that are centred over classes have a smaller variance; the draws make up for it."""
    student = LatentFactor(nn.Linear(1, classes + 2), classes, MEMBERS, factors=2, draws=1024)
    members = student.noise.double()
    teachers = numbers(4096, classes, seed=10)
    centred = deviations(teachers)
    centred = centred - centred.mean(-1, keepdim=True)
    assert float(members.square().mean()) == pytest.approx(1, abs=0.1)
    members = members * centred.square().mean().sqrt()  # σ
    spreads = [each.log_softmax(-1).var(0).mean() for each in (members, teachers)]
    assert float(spreads[0]) == pytest.approx(float(spreads[1]), rel=0.1)


@pytest.mark.parametrize("broken", ["features", "lower"])
def test_a_diverged_posterior_is_not_a_number_and_no_traceback(broken):
    parts = {"features": FEATURES.clone(), "lower": LOWER.clone()}
    parts[broken][0, 0] = math.inf
    found = posterior(RESIDUAL, parts["features"], parts["lower"], VARIANCE)
    assert expected_square(RESIDUAL, parts["features"], parts["lower"], found).isnan()


def test_members_are_draws_by_the_formula_and_the_network_runs_once():
    student = LatentFactor(network(3, extra=2), CLASSES, MEMBERS, factors=2, draws=3, seed=5).double().eval()
    student.scale.data.copy_(numbers(CLASSES, CLASSES, seed=9))
    student.variance.fill_(0.25)
    x = torch.rand(4, 1, 5, 5, generator=seeded())
    outputs, calls = student.network(x), []
    student.network.register_forward_hook(lambda *_: calls.append(1))
    whole = student.ask_all(x)
    assert len(calls) == 1
    own = student(torch.stack([x, x.flip(0), x]))
    for s in range(3):
        for row in range(4):
            drawn = student.scale.tril() @ student.z[s] @ outputs[row, CLASSES:]
            expected = outputs[row, :CLASSES] + drawn + 0.5 * student.noise[s]
            torch.testing.assert_close(whole[s, row], expected)
            torch.testing.assert_close(own[s, 3 - row if s == 1 else row], expected)
    again = LatentFactor(network(4, extra=2), CLASSES, MEMBERS, factors=2, draws=3, seed=5)
    assert torch.equal(again.z.double(), student.z)


def test_the_loss_is_what_the_formulas_give_in_both_phases():
    student = LatentFactor(network(3, extra=2), CLASSES, MEMBERS, factors=2, draws=3).double().eval()
    x, y = torch.rand(6, 1, 5, 5, generator=seeded()), torch.zeros(6, dtype=torch.int64)
    given = teachers(dtype=DOUBLE)
    logits = given.ask_all(x)
    logits = logits - logits.mean(-1, keepdim=True)
    mean, features = (part.detach() for part in student.parts(x))
    square = (logits.mean(0) - mean).square().mean()
    for steps, begins in ((0, True), (5, False)):
        student.steps.fill_(steps)
        before = student.variance.clone()
        found = posterior(deviations(logits), features, student.lower().detach(), before)
        error = expected_square(deviations(logits), features, student.lower().detach(), found)
        if begins:
            z = deviations(student.latents)
            fitted = torch.einsum("bq,mkq->mbk", features, student.lower() @ z)
            expected = (square + (deviations(logits) - fitted).square().mean()) / 2 + 3 * discrepancy(
                z.flatten(1)
            )
        else:
            expected = (square + error) / 2
        parts = DistillFactors(given, 10, first=0.3, penalty=3.0)(student, x, y, seeded())
        torch.testing.assert_close(parts["loss"], expected)
        torch.testing.assert_close(student.variance, 0.9 * before + 0.1 * error)


def test_what_it_cannot_do_is_one_sentence():
    student = LatentFactor(network(3, extra=2), CLASSES, 1, factors=2)
    x, y = torch.rand(2, 1, 5, 5), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="needs two teachers or more"):
        DistillFactors(DeepEnsemble([network(1)]), 10)(student, x, y, seeded())
    with pytest.raises(ValueError, match="is made for 1 teachers, not 2"):
        DistillFactors(teachers(), 10)(student, x, y, seeded())
    with pytest.raises(TypeError, match="needs a LatentFactor student, not a Single"):
        DistillFactors(teachers(), 10)(Single(network(1)), x, y, seeded())
    with pytest.raises(ValueError, match=r"has 3 outputs, not 3 \+ 8"):
        LatentFactor(network(3), CLASSES, 2)(torch.rand(16, 2, 1, 5, 5))
    assert math.isfinite(float(discrepancy(torch.zeros(2, 800))))
    assert isinstance(student.network, nn.Sequential)
