from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polyphony import losses


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
