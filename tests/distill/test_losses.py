from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special
from scipy.stats import dirichlet
from torch import Tensor
from torch.distributions import kl_divergence

from polyphony.distill import losses


def draw(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=rng, dtype=torch.float64)


def naive_softmax(logits: list[float], temperature: float) -> list[float]:
    exponentials = [math.exp(z / temperature) for z in logits]
    return [e / math.fsum(exponentials) for e in exponentials]


def naive_distillation(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """τ² Σ_k p_k log(p_k / q_k), one member and one example at a time."""
    terms = []
    for rows, targets in zip(student.tolist(), teacher.tolist(), strict=True):
        for row, target in zip(rows, targets, strict=True):
            p, q = naive_softmax(target, temperature), naive_softmax(row, temperature)
            terms.append(math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return temperature**2 * math.fsum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("shape", [(1, 1, 2), (4, 3, 10), (2, 5, 100)], ids=str)
def test_distillation_is_the_naive_loop(shape, temperature):
    student, teacher = draw(*shape, seed=1), draw(*shape, seed=2)
    expected = naive_distillation(student, teacher, temperature)
    assert float(losses.distillation(student, teacher, temperature)) == pytest.approx(expected, rel=1e-10)
    single = losses.distillation(student.float(), teacher.float(), temperature)
    assert float(single) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distillation_is_stationary_and_zero_at_the_teacher(temperature):
    teacher = draw(3, 4, 10)
    student = (teacher + 7.0).requires_grad_()  # logits are the same up to a constant
    loss = losses.distillation(student, teacher, temperature)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-14
    assert float(student.grad.abs().max()) < 1e-15
    nudged = losses.distillation(teacher + 0.1 * draw(3, 4, 10, seed=5), teacher, temperature)
    assert float(nudged) > 1e-4


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_gradient_is_tau_times_the_difference_of_probabilities(temperature):
    """τ² makes up for the 1/τ of the logits twice over: ∂L/∂z = τ (q − p) / (m b)."""
    student, teacher = draw(2, 3, 5, seed=1).requires_grad_(), draw(2, 3, 5, seed=2)
    losses.distillation(student, teacher, temperature).backward()
    for j in range(2):
        for b in range(3):
            q = naive_softmax(student[j, b].tolist(), temperature)
            p = naive_softmax(teacher[j, b].tolist(), temperature)
            expected = [temperature * (a - c) / 6 for a, c in zip(q, p, strict=True)]
            assert student.grad[j, b].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_at_a_high_temperature_the_loss_tends_to_half_the_squared_distance_of_centred_logits():
    """The limit that fixes the scale τ²: KL → |z_s − z_t|² / (2 K τ²) for centred logits."""
    student, teacher = draw(2, 3, 5, seed=1), draw(2, 3, 5, seed=2)
    centred = [z - z.mean(-1, keepdim=True) for z in (student, teacher)]
    limit = (centred[0] - centred[1]).square().sum(-1).mean() / (2 * 5)
    assert float(losses.distillation(student, teacher, 1e4)) == pytest.approx(float(limit), rel=1e-3)


def test_a_saturated_teacher_gives_a_finite_loss_and_gradient():
    teacher = torch.zeros(1, 2, 3)
    teacher[..., 0] = 1e4
    student = torch.zeros(1, 2, 3, requires_grad=True)
    loss = losses.distillation(student, teacher, 1.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(3), rel=1e-6)
    assert student.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 1, 2), (4, 3, 10)], ids=str)
def test_cross_entropy_is_the_naive_loop(shape):
    logits = draw(*shape)
    labels = torch.randint(shape[-1], shape[:-1], generator=torch.Generator().manual_seed(1))
    terms = [
        -math.log(naive_softmax(logits[j, b].tolist(), 1.0)[labels[j, b]])
        for j in range(shape[0])
        for b in range(shape[1])
    ]
    expected = math.fsum(terms) / len(terms)
    assert float(losses.cross_entropy(logits, labels)) == pytest.approx(expected, rel=1e-12)


# One network from the averaged teachers


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize(("members", "teachers"), [(1, 4), (3, 2), (2, 1)])
def test_mean_distillation_is_the_naive_loop(members, teachers, temperature):
    student, targets = draw(members, 3, 5, seed=1), draw(teachers, 3, 5, seed=2)
    terms = []
    for rows in student.tolist():
        for b, row in enumerate(rows):
            each = [naive_softmax(targets[j, b].tolist(), temperature) for j in range(teachers)]
            mean = [math.fsum(column) / teachers for column in zip(*each, strict=True)]
            q = naive_softmax(row, temperature)
            terms.append(math.fsum(p * math.log(p / a) for p, a in zip(mean, q, strict=True)))
    expected = temperature**2 * math.fsum(terms) / len(terms)
    found = losses.mean_distillation(student, targets, temperature)
    assert float(found) == pytest.approx(expected, rel=1e-10)
    single = losses.mean_distillation(student.float(), targets.float(), temperature)
    assert float(single) == pytest.approx(expected, rel=1e-4)


def test_members_that_see_other_examples_have_targets_of_their_own():
    student, targets = draw(2, 3, 5, seed=1), draw(4, 2, 3, 5, seed=2)
    each = [losses.mean_distillation(student[j : j + 1], targets[:, j], 4.0) for j in range(2)]
    torch.testing.assert_close(losses.mean_distillation(student, targets, 4.0), sum(each) / 2)


def test_mean_distillation_from_one_teacher_is_distillation():
    student, teacher = draw(1, 3, 5, seed=1), draw(1, 3, 5, seed=2)
    one, same = losses.mean_distillation(student, teacher, 4.0), losses.distillation(student, teacher, 4.0)
    torch.testing.assert_close(one, same)


def test_smoothing_mixes_with_the_uniform_distribution():
    log_p = draw(2, 3, 4).log_softmax(-1)
    expected = 0.9 * log_p.exp() + 0.1 / 4
    torch.testing.assert_close(losses.smooth(log_p, 0.1).exp(), expected)
    torch.testing.assert_close(losses.smooth(log_p, 0.0), log_p)
    uniform = torch.full_like(log_p, 1 / log_p.shape[-1])
    torch.testing.assert_close(losses.smooth(log_p, 1.0).exp(), uniform)
    certain = torch.tensor([0.0, -torch.inf])
    torch.testing.assert_close(losses.smooth(certain, 1e-4).exp(), torch.tensor([1 - 5e-5, 5e-5]))


# The distribution of the teachers' predictions: scipy knows the Dirichlet too


def teachers_on(examples: int, classes: int, scale: float = 3.0, members: int = 4) -> Tensor:
    """Log-probabilities of teachers that share a prediction and differ around it. [M b k]"""
    shared, own = draw(1, examples, classes, seed=7, scale=scale), draw(members, examples, classes, seed=8)
    return (shared + 0.2 * own).log_softmax(-1)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_the_dirichlet_likelihood_is_scipys(classes):
    log_alpha, log_p = draw(3, classes, seed=1, scale=1.5), teachers_on(3, classes)
    terms = [
        -dirichlet.logpdf(normalised(log_p[j, b].exp()), log_alpha[b].exp().numpy())
        for j in range(4)
        for b in range(3)
    ]
    found = losses.dirichlet_nll(log_alpha, log_p)
    assert float(found) == pytest.approx(sum(terms) / len(terms), rel=1e-9)
    single = losses.dirichlet_nll(log_alpha.float(), log_p.float())
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def normalised(probs: Tensor) -> np.ndarray:
    """To the last bit, as scipy asks."""
    values = probs.double().numpy()
    return values / values.sum()


@pytest.mark.parametrize("log_alpha", [-8.0, 0.0, 5.0, 12.0])
def test_the_likelihood_in_float32_is_right_for_tiny_and_for_huge_concentrations(log_alpha):
    """At α = e¹² the gamma functions are of the order 10⁷ and their difference of the order 10²."""
    z = log_alpha + draw(2, 10, seed=1, scale=0.3).float()
    log_p = z.double().expand(4, 2, 10).log_softmax(-1)
    found = losses.dirichlet_nll(z, log_p)
    terms = [dirichlet.logpdf(normalised(p.double().softmax(-1)), p.double().exp().numpy()) for p in z]
    assert float(found) == pytest.approx(-sum(terms) / 2, rel=1e-4)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_proxy_loss_is_written_out_with_scipys_special_functions(classes):
    log_alpha, log_p = torch.nn.functional.softplus(draw(3, classes, seed=1)), teachers_on(3, classes)
    terms = []
    for b in range(3):
        alpha, pi = log_alpha[b].exp().numpy(), log_p[:, b].exp().numpy()
        mean = pi.mean(0)
        precision = (classes - 1) / (2 * (mean * (np.log(mean) - np.log(pi).mean(0))).sum())
        beta = mean * precision + 1
        mean_log = special.digamma(alpha) - special.digamma(alpha.sum())
        to_flat = -dirichlet(alpha).entropy() - special.gammaln(classes)  # KL to the uniform Dirichlet
        terms.append(-(mean * mean_log).sum() + to_flat / beta.sum())
    found = losses.proxy_dirichlet(log_alpha, log_p)
    assert float(found) == pytest.approx(sum(terms) / 3, rel=1e-9)
    single = losses.proxy_dirichlet(log_alpha.float(), log_p.float())
    assert float(single) == pytest.approx(sum(terms) / 3, rel=1e-3)


def dirichlet_kl(alpha: Tensor, beta: Tensor) -> Tensor:
    """KL(Dir(α) ‖ Dir(β)) by PyTorch's own distributions."""
    return kl_divergence(torch.distributions.Dirichlet(alpha), torch.distributions.Dirichlet(beta))


def test_the_proxy_loss_has_the_gradient_of_the_reverse_divergence():
    log_alpha = torch.nn.functional.softplus(draw(3, 10, seed=1)).requires_grad_()
    log_p = teachers_on(3, 10)
    precision, mean = losses.proxy_precision(log_p), log_p.exp().mean(0)
    reverse = (dirichlet_kl(log_alpha.exp(), precision[:, None] * mean + 1) / precision).mean()
    (expected,) = torch.autograd.grad(reverse, log_alpha)
    (found,) = torch.autograd.grad(losses.proxy_dirichlet(log_alpha, log_p), log_alpha)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("precision", [50.0, 1000.0])
def test_the_proxys_precision_is_about_that_of_the_dirichlet_the_teachers_are_drawn_from(precision):
    """Stirling's approximation is of the first order in 1/α, so concentrations here are not small."""
    mean = np.array([0.4, 0.3, 0.2, 0.1])
    drawn = dirichlet(precision * mean).rvs(20000, random_state=np.random.default_rng(0))
    found = float(losses.proxy_precision(torch.from_numpy(drawn).log()[:, None])[0]) - 4
    assert found == pytest.approx(precision, rel=0.1)


@pytest.mark.parametrize("loss", [losses.dirichlet_nll, losses.proxy_dirichlet])
def test_gradients_of_dirichlet_losses_are_finite_differences(loss):
    log_alpha, log_p = draw(2, 4, seed=1, scale=1.0).requires_grad_(), teachers_on(2, 4)
    assert torch.autograd.gradcheck(lambda z: loss(z, log_p), (log_alpha,))


@pytest.mark.parametrize("loss", [losses.dirichlet_nll, losses.proxy_dirichlet])
@pytest.mark.parametrize("apart", [0.0, 1e-4, 1.0])
def test_saturated_teachers_give_finite_losses_and_gradients(loss, apart):
    logits = torch.zeros(3, 2, 10)
    logits[..., 0] = 1e4
    logits[0, :, 1] = apart * 1e4
    log_p = losses.smooth(logits.log_softmax(-1), 1e-4)
    log_alpha = torch.zeros(2, 10, requires_grad=True)
    value = loss(log_alpha, log_p)
    value.backward()
    assert value.isfinite()
    assert log_alpha.grad.isfinite().all()
    assert (log_alpha.grad[:, 0] < 0).all()  # the class they name must gain


def test_teachers_that_agree_have_the_stated_precision():
    log_p = draw(1, 3, 10).log_softmax(-1).expand(4, 3, 10)
    limit = 10 + 9 / (2 * losses.AGREEMENT)
    torch.testing.assert_close(losses.proxy_precision(log_p), torch.full((3,), limit).double())
    torch.testing.assert_close(losses.proxy_precision(log_p.float()), torch.full((3,), limit).double())


def test_the_likelihood_is_greatest_where_the_teachers_are_from():
    """Teachers drawn from Dir(α): the gradient at log α vanishes as their number grows, and not beside it."""
    alpha = np.array([5.0, 2.0, 1.0, 0.5])
    drawn = dirichlet(alpha).rvs(200_000, random_state=np.random.default_rng(0))
    log_p = torch.from_numpy(drawn).log()[:, None]
    log_alpha = torch.from_numpy(alpha).log()[None].requires_grad_()
    losses.dirichlet_nll(log_alpha, log_p).backward()
    assert log_alpha.grad.abs().max() < 0.01
    beside = (log_alpha.detach() + 0.3).requires_grad_()
    losses.dirichlet_nll(beside, log_p).backward()
    assert (beside.grad > 0.03).all()


@pytest.mark.parametrize("limit", [0.1, 1.0, math.inf])
def test_a_limit_shortens_long_gradients_of_examples_and_leaves_the_rest(limit):
    z, log_p = draw(1, 6, 10, seed=1, scale=2.0).requires_grad_(), teachers_on(6, 10)
    (free,) = torch.autograd.grad(losses.dirichlet_nll(z[0], log_p), z)

    def loss(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nll = losses.dirichlet_nll(at[0], log_p)
        return 2 * nll, nll

    limited, nll = losses.limit_gradient(loss, z, limit)
    (found,) = torch.autograd.grad(1000 * limited, z)  # the limit does not see what a loss is multiplied by
    for whole, short in zip(free[0], found[0], strict=True):
        length = 2 * 6 * float(whole.norm())  # the loss is a mean over six
        torch.testing.assert_close(short / 1000, 2 * whole * min(1.0, limit / length))
    assert torch.equal(limited, 2 * nll)
    assert torch.equal(nll, losses.dirichlet_nll(z[0], log_p))


def test_the_limit_of_an_examples_gradient_does_not_depend_on_the_number_of_members():
    z = draw(3, 4, 5, seed=2, scale=2.0).requires_grad_()

    def loss(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = 100 * at.square().sum(-1).mean()  # a mean over three members and four examples
        return value, value

    limited, _ = losses.limit_gradient(loss, z, 0.5)
    (found,) = torch.autograd.grad(limited, z)
    torch.testing.assert_close(3 * 4 * found.norm(dim=-1), torch.full((3, 4), 0.5, dtype=z.dtype))
