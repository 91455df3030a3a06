from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import dirichlet
from torch import Tensor, nn

from polyphony.data import Augmentation, Split
from polyphony.distill import DistillDistribution, DistillMean, DistillProxy, losses
from polyphony.distill.perturb import Clean
from polyphony.ensembles import MIMO, BatchEnsemble, DeepEnsemble, Dirichlet, Single
from polyphony.nn import resnet
from polyphony.training.fit import Plan, fit

MEMBERS, BATCH, CLASSES = 3, 4, 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int, channels: int = 2, classes: int = CLASSES) -> nn.Module:
    return resnet(8, classes, channels=channels, width=4, rng=seeded(seed)).double()


def teachers() -> DeepEnsemble:
    return DeepEnsemble([small(j) for j in range(MEMBERS)])


def batch() -> tuple[Tensor, Tensor]:
    x = torch.rand(BATCH, 2, 6, 6, generator=seeded(1), dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=seeded(2))


@dataclass(frozen=True)
class Shifted:
    """A perturbation without chance that keeps the temperature it was called with."""

    temperatures: list[float]

    def __call__(self, x, y, teachers, student, temperature, rng):
        self.temperatures.append(temperature)
        return (x + 0.05 * y.view(-1, 1, 1, 1)).clamp(0, 1)


def logits_of(networks: DeepEnsemble, x: Tensor) -> list[list[list[float]]]:
    with torch.no_grad():
        return [network(x).tolist() for network in networks.networks]


def softmax(logits: list[float], temperature: float = 1.0) -> np.ndarray:
    exponentials = np.exp(np.array(logits) / temperature)
    return exponentials / exponentials.sum()


# Mean-KD


@pytest.mark.parametrize("alpha", [0.0, 0.9])
@pytest.mark.parametrize("shifted", [False, True])
def test_mean_kd_is_an_explicit_loop(alpha, shifted):
    ensemble, student, (x, y) = teachers(), Single(small(9)).eval(), batch()
    perturb = Shifted([]) if shifted else Clean()
    x_tilde = perturb(x, y, None, None, 4.0, None)
    clean, moved = (student(rows[None])[0].tolist() for rows in (x, x_tilde))
    targets = logits_of(ensemble, x_tilde)
    ce = [-math.log(softmax(clean[i])[y[i]]) for i in range(BATCH)]
    kd = []
    for i in range(BATCH):
        p = np.mean([softmax(targets[j][i], 4.0) for j in range(MEMBERS)], axis=0)
        kd.append(float((p * np.log(p / softmax(moved[i], 4.0))).sum()))
    mean_ce, mean_kd = math.fsum(ce) / BATCH, 16 * math.fsum(kd) / BATCH
    parts = DistillMean(ensemble, alpha, 4.0, perturb)(student, x, y, seeded())
    found = [float(parts[name].detach()) for name in ("loss", "ce", "kd")]
    assert found == pytest.approx([(1 - alpha) * mean_ce + alpha * mean_kd, mean_ce, mean_kd], rel=1e-9)


def test_members_that_see_examples_in_orders_of_their_own_have_the_matching_targets():
    student, ensemble, (x, y) = MIMO(small(9, 4, 10), 2).eval(), teachers(), batch()
    parts = DistillMean(ensemble, 0.5, 4.0)(student, x, y, seeded(5))
    seen = student.assign(BATCH, seeded(5))
    logits, targets = student(x[seen]), logits_of(ensemble, x)
    kd = []
    for j in range(2):
        for row, i in enumerate(seen[j].tolist()):
            p = np.mean([softmax(targets[t][i], 4.0) for t in range(MEMBERS)], axis=0)
            kd.append(float((p * np.log(p / softmax(logits[j, row].tolist(), 4.0))).sum()))
    assert float(parts["kd"].detach()) == pytest.approx(16 * math.fsum(kd) / len(kd), rel=1e-9)


def test_mean_kd_passes_the_student_once_when_clean():
    student, (x, y), calls = BatchEnsemble(small(9), 2, rng=seeded()), batch(), []
    student.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0]))
    DistillMean(teachers())(student, x, y, seeded())
    DistillMean(teachers(), perturb=Shifted([]))(student, x, y, seeded())
    assert len(calls) == 3


# EnD²


def exact(probs: np.ndarray) -> np.ndarray:
    return probs / probs.sum()


@pytest.mark.parametrize(
    ("step", "temperature"), [(0, 10.0), (300, 10.0), (450, 5.5), (600, 1.0), (899, 1.0)]
)
def test_the_distribution_loss_is_scipys_likelihood_at_the_annealed_temperature(step, temperature):
    ensemble, student, (x, y) = teachers(), Dirichlet(small(9)), batch()
    student.steps.fill_(step)
    z = student(x[None])[0].tolist()
    student.steps.fill_(step)
    targets = logits_of(ensemble, x)
    terms = [
        -dirichlet.logpdf(
            exact((1 - 1e-3) * softmax(targets[j][i], temperature) + 1e-3 / CLASSES),
            np.exp(np.array(z[i]) / temperature),
        )
        for j in range(MEMBERS)
        for i in range(BATCH)
    ]
    parts = DistillDistribution(ensemble, 900, smoothing=1e-3)(student, x, y, seeded())
    expected = temperature**2 * math.fsum(terms) / len(terms)
    assert float(parts["temperature"]) == pytest.approx(temperature)
    assert float(parts["loss"].detach()) == pytest.approx(expected, rel=1e-4)
    assert int(student.steps) == step + 1


def test_the_temperature_never_rises_and_ends_at_one():
    loss = DistillDistribution(teachers(), 100)
    path = [float(loss.temperature_at(torch.tensor(step))) for step in range(120)]
    assert path == sorted(path, reverse=True)
    assert path[33] == 10.0
    assert set(path[67:]) == {1.0}


def test_a_training_in_two_halves_has_the_temperatures_of_one():
    ensemble, (x, y) = teachers(), batch()
    loss, whole = DistillDistribution(ensemble, 10), Dirichlet(small(9))
    path = [float(loss(whole, x, y, seeded())["temperature"]) for _ in range(10)]
    first, second = Dirichlet(small(9)), Dirichlet(small(8))
    halves = [float(loss(first, x, y, seeded())["temperature"]) for _ in range(5)]
    second.load_state_dict(first.state_dict())
    halves += [float(loss(second, x, y, seeded())["temperature"]) for _ in range(5)]
    assert halves == path


# The proxy


def test_the_proxy_distillation_reads_softmax_of_the_teachers_and_softplus_of_the_student():
    ensemble, network, (x, y) = teachers(), small(9).eval(), batch()
    log_alpha = torch.nn.functional.softplus(network(x))
    log_p = torch.tensor(logits_of(ensemble, x)).log_softmax(-1)
    expected = losses.proxy_dirichlet(log_alpha, log_p)
    parts = DistillProxy(ensemble)(Dirichlet(network, 1.0).eval(), x, y, seeded())
    assert float(parts["loss"].detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "offset"),
    [
        (lambda t, p: DistillDistribution(t, 9, perturb=p, temperature=4.0), 0.0),
        (lambda t, p: DistillProxy(t, perturb=p, temperature=4.0), 1.0),
    ],
    ids=["end2", "proxy"],
)
def test_distributions_are_distilled_on_perturbed_inputs_in_one_pass_and_only_the_student_learns(
    make, offset
):
    ensemble, student, (x, y) = teachers(), Dirichlet(small(9).float(), offset), batch()
    ensemble, perturb, calls = ensemble.float(), Shifted([]), []
    x = x.float()
    student.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0]))
    make(ensemble, perturb)(student, x, y, seeded())["loss"].backward()
    assert perturb.temperatures == [4.0]
    assert len(calls) == 1
    assert torch.equal(calls[0][0], perturb(x, y, None, None, 1.0, None))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for p in ensemble.parameters())


@pytest.mark.parametrize("make", [lambda t: DistillDistribution(t, 9), DistillProxy])
def test_a_student_without_concentrations_is_refused(make):
    x, y = batch()
    with pytest.raises(TypeError, match="not a Single"):
        make(teachers())(Single(small(9)), x, y, seeded())


@pytest.mark.parametrize(
    ("make", "offset"), [(lambda t: DistillDistribution(t, 9), 1.0), (DistillProxy, 0.0)]
)
def test_a_student_with_the_other_losss_concentrations_is_refused(make, offset):
    x, y = batch()
    with pytest.raises(ValueError, match=f"use Dirichlet.network, offset={1 - offset:g}."):
        make(teachers())(Dirichlet(small(9), offset), x, y, seeded())


@pytest.mark.parametrize(
    ("make", "offset", "rate"),
    [(lambda t: DistillDistribution(t, 300, 2.0), 0.0, 0.1), (DistillProxy, 1.0, 1.0)],
    ids=["end2", "proxy"],
)
def test_fitting_finds_the_teachers_mean_prediction_and_precision(make, offset, rate):
    """Teachers that answer the same for every image: one Dirichlet is right, and it is found."""

    class Answer(nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits = nn.Parameter(logits)

        def forward(self, x):
            return self.logits + 0 * x.mean((1, 2, 3))[:, None]

    answers = torch.tensor([[1.2, 0.0, 0.3], [0.8, 0.3, 0.0], [1.0, -0.2, 0.1]])
    data = Split(torch.zeros(80, 1, 2, 2, dtype=torch.uint8), torch.zeros(80, dtype=torch.int64))
    student = Dirichlet(Answer(torch.zeros(3)), offset)
    plan = Plan(
        epochs=30, batch=8, learning_rate=rate, weight_decay=0.0, warm_up=0, augment=Augmentation(0, False)
    )
    fit(student, make(DeepEnsemble([Answer(a) for a in answers])), data, data, plan, seeded())
    log_alpha = student.eval()(torch.zeros(1, 1, 1, 2, 2)).detach()[0, 0].double()
    log_p = answers.double().log_softmax(-1)
    torch.testing.assert_close(log_alpha.softmax(-1), log_p.exp().mean(0), rtol=0.03, atol=0)
    precision = float(losses.proxy_precision(log_p[:, None]))
    assert float(log_alpha.exp().sum()) == pytest.approx(precision, rel=0.1)
