from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from polyphony.distill import Distill, DistillMean
from polyphony.distill.perturb import ODS, Clean, Diversify, Gaussian
from polyphony.ensembles import (
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Ensemble,
    Hydra,
    LatentBE,
    SameRows,
    Single,
)
from polyphony.nn import resnet

MEMBERS, BATCH, CLASSES = 3, 4, 5

one_pass = partial(Distill, passes="one")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int, members: int = 1) -> nn.Module:
    return resnet(8, members * CLASSES, channels=members * 2, width=4, rng=seeded(seed)).double()


def deep() -> DeepEnsemble:
    return DeepEnsemble([small(j) for j in range(MEMBERS)])


def batch() -> tuple[Tensor, Tensor]:
    x = torch.rand(BATCH, 2, 6, 6, generator=seeded(1), dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=seeded(2))


def shifted(x: Tensor, y: Tensor, teachers: DeepEnsemble | None, student, temperature: float, rng) -> Tensor:
    """A perturbation without chance."""
    return (x + 0.05 * y.view(-1, 1, 1, 1)).clamp(0, 1)


STUDENTS = {
    "batch_ensemble": lambda: BatchEnsemble(small(9), MEMBERS, rng=seeded()),
    "latent": lambda: LatentBE(small(9), MEMBERS),
    "hydra": lambda: Hydra(small(9), MEMBERS, rng=seeded()),
    "mimo": lambda: MIMO(small(9, MEMBERS), MEMBERS, batch_repetition=2, input_repetition=0.5),
}


def naive_log_softmax(logits: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(z) for z in logits))
    return [z - total for z in logits]


def naive_ce(logits: list[float], label: int) -> float:
    return -naive_log_softmax(logits)[label]


def naive_kd(student: list[float], teacher: list[float], tau: float) -> float:
    log_p, log_q = (naive_log_softmax([z / tau for z in logits]) for logits in (teacher, student))
    return tau**2 * math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def by_loop(
    student: Ensemble, teachers: DeepEnsemble, on: tuple[Tensor, Tensor], y: Tensor, tau: float
) -> tuple[float, float]:
    """Mean CE on the first inputs and mean KD on the second, member by member and row by row."""
    assigned = student.assign(BATCH, seeded())
    same = [list(range(BATCH)) for _ in range(student.members)]
    seen = same if isinstance(assigned, SameRows) else assigned.tolist()
    answers = [student(torch.stack([x[rows] for rows in seen])).tolist() for x in on]
    ce, kd = [], []
    for j, rows in enumerate(seen):
        for row, example in enumerate(rows):
            with torch.no_grad():
                target = teachers.networks[j](on[1][example : example + 1])[0].tolist()
            ce.append(naive_ce(answers[0][j][row], int(y[example])))
            kd.append(naive_kd(answers[1][j][row], target, tau))
    return math.fsum(ce) / len(ce), math.fsum(kd) / len(kd)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", STUDENTS)
def test_labels_and_teachers_both_on_perturbed_inputs_by_a_loop(kind, alpha):
    student, teachers, (x, y) = STUDENTS[kind]().eval(), deep(), batch()
    x_tilde = shifted(x, y, None, None, 0, None)
    ce, kd = by_loop(student, teachers, (x_tilde, x_tilde), y, 4.0)
    parts = one_pass(teachers, alpha, 4.0, shifted)(student, x, y, seeded())
    found = [float(parts[name].detach()) for name in ("loss", "ce", "kd")]
    assert found == pytest.approx([(1 - alpha) * ce + alpha * kd, ce, kd], rel=1e-9)


@pytest.mark.parametrize("kind", STUDENTS)
def test_algorithm_1_for_every_student_by_a_loop(kind):
    student, teachers, (x, y) = STUDENTS[kind]().eval(), deep(), batch()
    ce, kd = by_loop(student, teachers, (x, shifted(x, y, None, None, 0, None)), y, 4.0)
    parts = Distill(teachers, 0.3, 4.0, shifted)(student, x, y, seeded())
    found = [float(parts[name].detach()) for name in ("loss", "ce", "kd")]
    assert found == pytest.approx([0.7 * ce + 0.3 * kd, ce, kd], rel=1e-9)


@pytest.mark.parametrize("loss", [Distill, one_pass])
@pytest.mark.parametrize("kind", STUDENTS)
def test_a_teacher_is_asked_once_for_each_example(kind, loss):
    teachers, (x, y) = deep(), batch()
    asked: list[tuple[int, int]] = []
    for j, net in enumerate(teachers.networks):
        net.register_forward_hook(lambda module, inputs, out, j=j: asked.append((j, len(out))))
    loss(teachers, perturb=Gaussian())(STUDENTS[kind](), x, y, seeded())
    assert asked == [(j, BATCH) for j in range(MEMBERS)]


def test_one_student_pass_on_what_the_perturbation_gives():
    student, (x, y) = STUDENTS["batch_ensemble"](), batch()
    calls: list[Tensor] = []
    student.register_forward_hook(lambda module, inputs, out: calls.append(inputs[0]))
    one_pass(deep(), perturb=shifted)(student, x, y, seeded())
    (inputs,) = calls
    assert torch.equal(inputs, shifted(x, y, None, None, 0, None).expand_as(inputs))


@pytest.mark.parametrize(("passes", "calls"), [("one", 1), ("two", 2)])
def test_a_single_network_learns_the_mean_in_as_many_passes(passes, calls):
    student, teachers, (x, y), seen = Single(small(9)).eval(), deep(), batch(), []
    student.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0][0]))
    parts = DistillMean(teachers, 0.3, 4.0, shifted, passes)(student, x, y, seeded())
    x_tilde = shifted(x, y, None, None, 0, None)
    assert [torch.equal(rows, x_tilde) for rows in seen] == [False, True][-calls:]
    labelled = student(seen[0][None])[0].tolist()
    ce = math.fsum(naive_ce(row, int(label)) for row, label in zip(labelled, y, strict=True)) / BATCH
    assert float(parts["ce"].detach()) == pytest.approx(ce, rel=1e-9)


def test_on_clean_inputs_it_is_algorithm_1():
    teachers, (x, y) = deep(), batch()
    losses = [
        kind(teachers, 0.6, 4.0, Clean())(STUDENTS["batch_ensemble"](), x, y, seeded())["loss"]
        for kind in (Distill, one_pass)
    ]
    assert float(losses[0].detach()) == float(losses[1].detach())


def test_with_an_alpha_of_one_the_labels_have_no_part():
    teachers, (x, y) = deep(), batch()
    one, other = (
        one_pass(teachers, alpha=1.0, perturb=ODS())(STUDENTS["hydra"](), x, labels, seeded())
        for labels in (y, (y + 1) % CLASSES)
    )
    assert torch.equal(one["loss"], other["loss"])
    assert not torch.equal(one["ce"], other["ce"])


def test_diversified_steps_train_the_student_and_touch_no_teacher():
    student, teachers, (x, y) = STUDENTS["latent"]().train(), deep(), batch()
    kept = copy.deepcopy(teachers.state_dict())
    optimiser = torch.optim.SGD(student.parameters(), 0.05)
    loss = one_pass(teachers, 1.0, 4.0, Diversify(0.01))
    rng, history = seeded(), []
    for _ in range(20):
        parts = loss(student, x, y, rng)
        optimiser.zero_grad()
        parts["loss"].backward()
        optimiser.step()
        history.append(float(parts["loss"].detach()))
        assert student.training
    assert sum(history[-5:]) < 0.7 * sum(history[:5])
    assert all(torch.equal(value, kept[name]) for name, value in teachers.state_dict().items())
    assert all(p.grad is None for p in teachers.parameters())


@pytest.mark.parametrize("loss", [Distill, one_pass])
def test_teachers_of_another_number_are_refused(loss):
    x, y = batch()
    with pytest.raises(ValueError, match="the student has 3 members, the ensemble 2 teachers"):
        loss(DeepEnsemble([small(0), small(1)]), perturb=Clean())(STUDENTS["mimo"](), x, y, seeded())
