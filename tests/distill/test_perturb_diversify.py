from __future__ import annotations

import copy
from collections import Counter
from itertools import permutations

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.distill.perturb import Diversify, disagreement_seeds
from polyphony.ensembles import MIMO, BatchEnsemble, DeepEnsemble, Ensemble, Hydra, LatentBE, Single
from polyphony.nn import resnet

MEMBERS, CLASSES = 3, 5
STEP = 1e-3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int, members: int = 1) -> nn.Module:
    """A network with statistics of its own in every norm."""
    net = resnet(8, members * CLASSES, channels=members * 2, width=4, rng=seeded(seed))
    net(torch.rand(16, members * 2, 6, 6, generator=seeded(seed + 1)))
    return net


def deep(members: int = MEMBERS) -> DeepEnsemble:
    return DeepEnsemble([network(10 * j) for j in range(members)])


STUDENTS = {
    "batch_ensemble": lambda: BatchEnsemble(network(90), MEMBERS, rng=seeded(1)),
    "mimo": lambda: MIMO(network(90, MEMBERS), MEMBERS),
    "hydra": lambda: Hydra(network(90), MEMBERS, rng=seeded(1)),
    "latent": lambda: LatentBE(network(90), MEMBERS),
}


def grey(rows: int = 6) -> Tensor:
    return 0.3 + 0.4 * torch.rand(rows, 2, 6, 6, generator=seeded(5))


LABELS = torch.arange(6) % CLASSES


def cosine(a: Tensor, b: Tensor) -> Tensor:
    a, b = (v.flatten(1).double() for v in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def cross_entropies(
    x: Tensor, ensemble: Ensemble, i: int, j: int, tau: float, targets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """CE of member j for member i's fixed probabilities, an example; and those probabilities."""
    logits = ensemble(torch.stack(ensemble.members * [x])) / tau
    p = (logits[i].softmax(-1) if targets is None else targets).detach()
    return -(p * logits[j].softmax(-1).log()).sum(-1), p


def direction(x: Tensor, student: Ensemble, teachers: DeepEnsemble, i: int, j: int, tau: float) -> Tensor:
    """∇ₓ [CE(T_i, T_j) − CE(S_i, S_j)] by autograd through everything, in float64."""
    pixels = x.double().requires_grad_()
    theirs, ours = (copy.deepcopy(who).double().eval() for who in (teachers, student))
    up, _ = cross_entropies(pixels, theirs, i, j, tau)
    down, _ = cross_entropies(pixels, ours, i, j, tau)
    (gradient,) = torch.autograd.grad((up - down).sum(), pixels)
    return gradient


def pair_of(
    moved: Tensor, x: Tensor, student: Ensemble, teachers: DeepEnsemble, tau: float
) -> tuple[int, int]:
    """The members a step was made for: the only ones whose exact direction it is."""
    found = [
        pair
        for pair in permutations(range(MEMBERS), 2)
        if float(cosine(moved, direction(x, student, teachers, *pair, tau)).min()) > 1 - 1e-4
    ]
    assert len(found) == 1
    return found[0]


# Through the networks


@pytest.mark.parametrize("tau", [1.0, 4.0])
@pytest.mark.parametrize("kind", STUDENTS)
def test_the_step_is_the_float64_gradient_for_two_members(kind, tau):
    x, student, teachers = grey(), STUDENTS[kind](), deep()
    x_tilde = Diversify(STEP, tau)(x, LABELS, teachers, student, 7.0, seeded(3))
    pair_of(x_tilde - x, x, student, teachers, tau)
    rms = (x_tilde - x).double().flatten(1).square().mean(1).sqrt()
    torch.testing.assert_close(rms, torch.full_like(rms, STEP), rtol=1e-3, atol=0)


def test_members_that_are_alike_leave_the_teachers_direction():
    x, student, teachers = grey(), LatentBE(network(90), MEMBERS), deep()
    x_tilde = Diversify(STEP)(x, LABELS, teachers, student, 4.0, seeded(3))
    i, j = pair_of(x_tilde - x, x, student, teachers, 1.0)
    pixels = x.double().requires_grad_()
    ce, _ = cross_entropies(pixels, copy.deepcopy(teachers).double(), i, j, 1.0)
    (gradient,) = torch.autograd.grad(ce.sum(), pixels)
    assert float(cosine(x_tilde - x, gradient).min()) > 1 - 1e-4


def test_a_student_that_is_its_teachers_gives_no_direction():
    teachers = deep()

    class Copy(Ensemble):
        members = MEMBERS

        def __init__(self) -> None:
            super().__init__()
            self.networks = copy.deepcopy(teachers.networks)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([net(rows) for net, rows in zip(self.networks, x, strict=True)])

    x = grey()
    assert torch.equal(Diversify(STEP)(x, LABELS, teachers, Copy(), 4.0, seeded()), x)


def test_a_small_step_raises_the_teachers_disagreement_over_the_members():
    x, student, teachers = grey(), STUDENTS["batch_ensemble"](), deep()
    x_tilde = Diversify(1e-4)(x, LABELS, teachers, student, 4.0, seeded(3))
    i, j = pair_of(x_tilde - x, x, student, teachers, 1.0)
    gains = 0.0
    for sign, who in ((1, teachers), (-1, student)):
        exact = copy.deepcopy(who).double().eval()
        with torch.no_grad():
            before, p = cross_entropies(x.double(), exact, i, j, 1.0)
            after, _ = cross_entropies(x_tilde.double(), exact, i, j, 1.0, p)
        gains = gains + sign * (after - before)
    assert (gains > 0).all()


def test_all_ordered_pairs_are_drawn_equally_often():
    rng, n = seeded(), 300
    quick = [nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)) for _ in range(MEMBERS + 1)]
    teachers, student = DeepEnsemble(quick[1:]), Hydra(quick[0], MEMBERS)
    asked: list[int] = []
    for j, net in enumerate(teachers.networks):
        net.register_forward_hook(lambda module, inputs, out, j=j: asked.append(j))
    for _ in range(n):
        Diversify(STEP)(grey(1), LABELS[:1], teachers, student, 4.0, rng)
    pairs = Counter(zip(asked[::2], asked[1::2], strict=True))
    assert sum(pairs.values()) == n  # two teachers, each asked once
    assert set(pairs) == set(permutations(range(MEMBERS), 2))
    assert sum((count - n / 6) ** 2 / (n / 6) for count in pairs.values()) < 20.5  # χ², p = 0.001


def test_pixels_stay_between_0_and_1():
    x = torch.rand(6, 2, 6, 6, generator=seeded()).round()
    x_tilde = Diversify(0.1)(x, LABELS, deep(), STUDENTS["hydra"](), 4.0, seeded())
    assert x_tilde.min() == 0
    assert x_tilde.max() == 1
    assert not torch.equal(x, x_tilde)


# What it leaves alone


@pytest.mark.parametrize("kind", STUDENTS)
def test_nothing_of_the_student_changes(kind):
    x, student, teachers = grey(), STUDENTS[kind]().train(), deep()
    some_norm = next(module for module in student.modules() if isinstance(module, nn.BatchNorm2d))
    some_norm.eval()  # a part that its owner froze stays frozen
    modes = [module.training for module in student.modules()]
    before = copy.deepcopy(student.state_dict())
    kept = x.clone()
    x_tilde = Diversify(STEP)(x, LABELS, teachers, student, 4.0, seeded())
    assert [module.training for module in student.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert all(p.grad is None for who in (student, teachers) for p in who.parameters())
    assert all(p.requires_grad for p in student.parameters())
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert not x_tilde.requires_grad


def test_gradients_already_collected_are_not_added_to():
    student = STUDENTS["batch_ensemble"]()
    student(torch.stack(MEMBERS * [grey()])).sum().backward()
    before = [p.grad.clone() for p in student.parameters()]
    Diversify(STEP)(grey(), LABELS, deep(), student, 4.0, seeded())
    assert all(torch.equal(p.grad, old) for p, old in zip(student.parameters(), before, strict=True))


def test_equal_generators_give_equal_pixels_with_and_without_autocast_and_gradients():
    x, student, teachers = grey(), STUDENTS["batch_ensemble"](), deep()
    perturb = Diversify(STEP)
    one, same = (perturb(x, LABELS, teachers, student, 4.0, seeded(1)) for _ in range(2))
    assert torch.equal(one, same)
    others = (perturb(x, LABELS, teachers, student, 4.0, seeded(seed)) for seed in range(2, 6))
    assert any(not torch.equal(one, other) for other in others)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(perturb(x, LABELS, teachers, student, 4.0, seeded(1)), one)


@pytest.mark.parametrize(("members", "teachers"), [(1, 1), (3, 2), (2, 3)])
def test_members_without_partners_or_teachers_are_refused(members, teachers):
    student = Single(network(1)) if members == 1 else Hydra(network(1), members)
    message = f"there are {members} members and {teachers} teachers"
    with pytest.raises(ValueError, match=message):
        Diversify()(grey(), LABELS, deep(teachers), student, 4.0, seeded())


# The logit-space seeds


def logits_of(gap: float, seed: int, rows: int = 16, classes: int = 10) -> Tensor:
    """Logits whose largest is `gap` above the next, the same class for every seed in half of the rows."""
    rng = seeded(seed)
    logits = torch.randn(rows, classes, generator=rng)
    top = torch.randint(classes, (rows, 1), generator=rng)
    top[::2] = 3
    others = logits.scatter(1, top, -torch.inf).amax(1, keepdim=True)
    return logits.scatter(1, top, others + gap)


@pytest.mark.parametrize("gap", [0.0, 1.0, 5.0, 12.0])
@pytest.mark.parametrize("classes", [4, 10, 200])
def test_seeds_are_the_gradients_of_cross_entropy_up_to_one_number_an_example(gap, classes):
    pairs = [[logits_of(gap, 4 * k + i, classes=classes) for i in range(2)] for k in range(2)]
    found = torch.cat(disagreement_seeds(pairs), -1)
    expected = []
    for t, z in pairs:
        z = z.double().requires_grad_()
        ce = F.cross_entropy(z, t.double().softmax(-1), reduction="sum")
        expected.append(torch.autograd.grad(ce, z)[0])
    assert float(cosine(found, torch.cat(expected, -1)).min()) > 1 - 1e-9


def exactly(pairs: list[tuple[list[float], list[float]]]) -> list[float]:
    """softmax(z) − softmax(t) of each pair with hundreds of digits, all scaled to a largest one of one."""
    with mpmath.workdps(600):
        found = []
        for t, z in pairs:
            p, q = ([mpmath.exp(mpmath.mpf(v)) for v in row] for row in (t, z))
            found += [b / mpmath.fsum(q) - a / mpmath.fsum(p) for a, b in zip(p, q, strict=True)]
        largest = max(abs(v) for v in found)
        return [float(v / largest) for v in found]


@pytest.mark.parametrize("gap", [20.0, 40.0, 120.0, 500.0])
def test_seeds_match_exact_arithmetic_however_confident_all_are(gap):
    pairs = [[logits_of(gap, 4 * k + i) for i in range(2)] for k in range(2)]
    found = torch.cat(disagreement_seeds(pairs), -1)
    assert found.isfinite().all()
    for row in range(len(found)):
        expected = exactly([(t[row].tolist(), z[row].tolist()) for t, z in pairs])
        assert float(cosine(found[None, row], torch.tensor([expected]))) > 1 - 1e-7


def test_equal_predictions_have_no_seed():
    z = logits_of(3.0, 0)
    seed, other = disagreement_seeds([(z, z), (z, logits_of(3.0, 1))])
    assert not seed.any()
    assert other.any(-1).all()
