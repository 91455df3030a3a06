from __future__ import annotations

import copy
import math
from unittest import mock

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.distill import perturb
from polyphony.distill.perturb import (
    ODS,
    Adversarial,
    Clean,
    Gaussian,
    WithSource,
    adversarial_seed,
    ods_seed,
    unit_rms,
)
from polyphony.ensembles import DeepEnsemble
from polyphony.nn import resnet

STEP = 1 / 255
LABELS = torch.arange(6) % 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int, confidence: float = 1.0, classes: int = 5) -> nn.Module:
    """A teacher in eval mode whose logits are stretched until it is as confident as wanted."""
    net = resnet(8, classes, channels=2, width=4, rng=seeded(seed)).eval()
    net.classifier.weight.data *= confidence
    return net


def deep(members: int = 3, confidence: float = 1.0, classes: int = 5) -> DeepEnsemble:
    return DeepEnsemble([network(j, confidence, classes) for j in range(members)])


def grey(rows: int = 6) -> Tensor:
    """Pixels so far from 0 and 1 that no small step is clamped."""
    return 0.3 + 0.4 * torch.rand(rows, 2, 6, 6, generator=seeded(5))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    a, b = (v.flatten(1).double() for v in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def rms(x: Tensor) -> Tensor:
    return x.double().flatten(1).square().mean(1).sqrt()


# The logit-space seed


def saturated(gap: float, rows: int = 64, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits whose largest is `gap` above the next, and guides."""
    rng = seeded(seed)
    logits = torch.randn(rows, classes, generator=rng)
    top = torch.randint(classes, (rows, 1), generator=rng)
    others = logits.scatter(1, top, -torch.inf).amax(1, keepdim=True)
    return logits.scatter(1, top, others + gap), 2 * torch.rand(rows, classes, generator=rng) - 1


def through_the_softmax(logits: Tensor, guide: Tensor) -> Tensor:
    """∇_z wᵀ softmax(z) by autograd in float64."""
    z = logits.double().requires_grad_()
    (gradient,) = torch.autograd.grad((guide.double() * z.softmax(-1)).sum(), z)
    return gradient


def exactly(logits: list[float], guide: list[float]) -> list[float]:
    """The same with hundreds of digits, scaled to a largest component of one."""
    with mpmath.workdps(500):
        e = [mpmath.exp(mpmath.mpf(z)) for z in logits]
        p = [value / mpmath.fsum(e) for value in e]
        mean = mpmath.fsum(a * mpmath.mpf(w) for a, w in zip(p, guide, strict=True))
        v = [a * (mpmath.mpf(w) - mean) for a, w in zip(p, guide, strict=True)]
        largest = max(abs(value) for value in v)
        return [float(value / largest) for value in v]


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
@pytest.mark.parametrize("gap", [0.0, 1.0, 5.0, 12.0, 20.0])
def test_ods_seed_matches_autograd_in_float64(gap, classes):
    """Up to a gap of about 20: beyond, float64 autograd is no longer exact itself."""
    logits, guide = saturated(gap, classes=classes)
    assert float(cosine(ods_seed(logits, guide), through_the_softmax(logits, guide)).min()) > 1 - 1e-5


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("gap", [0.0, 10.0, 20.0, 30.0, 40.0, 80.0, 120.0, 500.0])
def test_ods_seed_matches_exact_arithmetic_however_confident_the_teacher(gap, classes):
    logits, guide = saturated(gap, rows=16, classes=classes, seed=int(gap))
    seed = ods_seed(logits, guide)
    expected = torch.tensor([exactly(*row) for row in zip(logits.tolist(), guide.tolist(), strict=True)])
    assert seed.isfinite().all()
    torch.testing.assert_close(seed.norm(dim=1), torch.ones(16))
    assert float(cosine(seed, expected).min()) > 1 - 1e-5


def test_a_guide_that_asks_for_nothing_gives_no_direction_and_no_nan():
    assert torch.equal(ods_seed(torch.tensor([[3.0, 1.0]]), torch.tensor([[0.5, 0.5]])), torch.zeros(1, 2))


@pytest.mark.parametrize("gap", [0.0, 10.0, 40.0, 500.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_adversarial_seed_matches_exact_arithmetic(gap, classes):
    logits, _ = saturated(gap, rows=16, classes=classes, seed=int(gap))
    labels = logits.argmax(-1)
    seed = adversarial_seed(logits, labels)
    for row, label, found in zip(logits.tolist(), labels.tolist(), seed, strict=True):
        with mpmath.workdps(500):
            e = [mpmath.exp(mpmath.mpf(z)) for z in row]
            p = [value / mpmath.fsum(e) for value in e]
            p[label] -= 1
            length = mpmath.sqrt(mpmath.fsum(value**2 for value in p))
            expected = torch.tensor([float(value / length) for value in p])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_adversarial_seed_of_a_wrong_label_is_the_gradient_of_the_loss():
    logits = 3 * torch.randn(20, 5, generator=seeded())
    labels = (logits.argmax(-1) + 1) % 5
    z = logits.double().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(z, labels, reduction="sum"), z)
    assert float(cosine(adversarial_seed(logits, labels), gradient).min()) > 1 - 1e-6


# Steps through a network


class Recorded:
    """Which teacher answers, and with what logits, whenever one is asked."""

    def __init__(self, teachers: DeepEnsemble) -> None:
        self.calls: list[tuple[int, Tensor]] = []
        for j, net in enumerate(teachers.networks):
            net.register_forward_hook(lambda module, inputs, out, j=j: self.calls.append((j, out.detach())))


def recorded_guides(
    perturbation, x: Tensor, teachers: DeepEnsemble, tau: float
) -> tuple[Tensor, Tensor, int]:
    """x̃, the guides it was made with and the teacher it was made by."""
    record, guides = Recorded(teachers), []
    watched = mock.patch.object(
        perturb, "ods_seed", side_effect=lambda z, w: guides.append(w) or ods_seed(z, w)
    )
    with watched:
        x_tilde = perturbation(x, LABELS, teachers, None, tau, seeded(3))
    ((r, _),) = record.calls
    return x_tilde, guides[0], r


@pytest.mark.parametrize("tau", [1.0, 4.0])
@pytest.mark.parametrize("confidence", [1.0, 10.0])
def test_ods_direction_is_that_of_a_float64_network(tau, confidence):
    x, teachers = grey(), deep(confidence=confidence)
    x_tilde, guide, r = recorded_guides(ODS(STEP), x, teachers, tau)
    exact = copy.deepcopy(teachers.networks[r]).double()
    pixels = x.double().requires_grad_()
    probabilities = (exact(pixels) / tau).softmax(-1)
    (gradient,) = torch.autograd.grad((guide.double() * probabilities).sum(), pixels)
    assert float(cosine(x_tilde - x, gradient).min()) > 1 - 1e-4
    assert guide.unique(dim=0).shape == guide.shape  # one for every example


def test_guides_are_uniform_between_minus_one_and_one():
    guides = []
    for seed in range(40):
        with mock.patch.object(
            perturb, "ods_seed", side_effect=lambda z, w: guides.append(w) or ods_seed(z, w)
        ):
            ODS(STEP)(grey(50), LABELS, deep(1), None, 4.0, seeded(seed))
    w = torch.cat(guides).double().flatten()
    assert w.min() >= -1
    assert w.max() <= 1
    assert abs(w.mean()) < 5 / math.sqrt(3 * len(w))
    assert abs(w.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / len(w))
    ranks = (w.sort().values + 1) / 2 - torch.linspace(0, 1, len(w), dtype=torch.float64)
    assert ranks.abs().max() < 2 / math.sqrt(len(w))  # Kolmogorov and Smirnov


@pytest.mark.parametrize("step_size", [STEP, 0.05])
@pytest.mark.parametrize("kind", [Gaussian, ODS, Adversarial])
def test_every_image_moves_by_an_rms_of_the_step_size(kind, step_size):
    x = grey()
    moved = kind(step_size)(x, LABELS, deep(), None, 4.0, seeded()) - x
    torch.testing.assert_close(
        rms(moved), torch.full((6,), step_size, dtype=torch.float64), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_confods_moves_by_the_step_size_times_the_teachers_confidence(tau):
    x, teachers = grey(), deep()
    record = Recorded(teachers)
    moved = ODS(0.02, scale_by_confidence=True)(x, LABELS, teachers, None, tau, seeded()) - x
    ((_, logits),) = record.calls
    confidence = (logits.double() / tau).softmax(-1).amax(-1)
    assert confidence.unique().numel() == 6
    torch.testing.assert_close(rms(moved), 0.02 * confidence, rtol=1e-4, atol=0)
    plain = ODS(0.02)(x, LABELS, teachers, None, tau, seeded()) - x
    assert float(cosine(moved, plain).min()) > 1 - 1e-6


@pytest.mark.parametrize("kind", [Gaussian, ODS, Adversarial])
def test_pixels_stay_between_0_and_1_and_only_those_that_would_leave_are_clamped(kind):
    x = grey()
    x[:, :, ::2] = torch.rand(6, 2, 3, 6, generator=seeded()).round()
    free = []
    with mock.patch.object(perturb, "step", side_effect=lambda x, d, s: free.append(x + s * d) or x + s * d):
        kind(0.1)(x, LABELS, deep(), None, 4.0, seeded())
    x_tilde = kind(0.1)(x, LABELS, deep(), None, 4.0, seeded())
    assert x_tilde.min() == 0
    assert x_tilde.max() == 1
    inside = (free[0] >= 0) & (free[0] <= 1)
    assert torch.equal(x_tilde[inside], free[0][inside])
    assert set(x_tilde[~inside].tolist()) == {0.0, 1.0}


def test_gaussian_directions_are_isotropic():
    x = torch.full((2000, 1, 2, 2), 0.5)
    moved = (Gaussian(0.1)(x, LABELS, deep(1), None, 1.0, seeded()) - x).flatten(1).double() / 0.1
    assert moved.mean(0).abs().max() < 5 / math.sqrt(2000)
    torch.testing.assert_close(moved.T @ moved / 2000, torch.eye(4, dtype=torch.float64), rtol=0, atol=0.15)


@pytest.mark.parametrize("confidence", [1.0, 10.0])
def test_adversarial_is_the_float64_gradient_and_raises_the_loss(confidence):
    x, teachers = grey(), deep(1, confidence)
    x_tilde = Adversarial(STEP)(x, LABELS, teachers, None, 4.0, seeded())
    exact = copy.deepcopy(teachers.networks[0]).double()
    pixels = x.double().requires_grad_()
    before = F.cross_entropy(exact(pixels) / 4, LABELS, reduction="none")
    (gradient,) = torch.autograd.grad(before.sum(), pixels)
    assert float(cosine(x_tilde - x, gradient).min()) > 1 - 1e-4
    after = F.cross_entropy(exact(x_tilde.double()) / 4, LABELS, reduction="none")
    assert (after > before).all()


def test_ods_moves_a_teachers_output_towards_the_guide():
    x, teachers = grey(), deep(1)
    x_tilde, guide, _ = recorded_guides(ODS(STEP), x, teachers, 1.0)
    with torch.no_grad():
        before, after = (teachers.networks[0](pixels).softmax(-1) for pixels in (x, x_tilde))
    assert (((after - before) * guide).sum(-1) > 0).all()


def test_clean_is_the_very_same_pixels():
    x = grey()
    assert Clean()(x, LABELS, deep(), None, 4.0, seeded()) is x


@pytest.mark.parametrize("kind", [ODS, Adversarial])
def test_one_teacher_a_step_each_as_often_as_the_others(kind):
    teachers, rng, n = deep(4), seeded(), 400
    record = Recorded(teachers)
    for _ in range(n):
        kind(STEP)(grey(1), LABELS[:1], teachers, None, 4.0, rng)
    asked = torch.bincount(torch.tensor([j for j, _ in record.calls]), minlength=4)
    assert int(asked.sum()) == n  # one teacher, asked once
    assert float(((asked - n / 4) ** 2 / (n / 4)).sum()) < 16.3  # χ² with 3 degrees of freedom, p = 0.001


def test_an_external_source_is_asked_instead_of_the_teachers():
    x, teachers, source = grey(), deep(2), DeepEnsemble([network(40), network(41)])
    ours, theirs = Recorded(teachers), Recorded(source)
    found = WithSource(ODS(STEP), source)(x, LABELS, teachers, None, 4.0, seeded())
    assert not ours.calls
    assert len(theirs.calls) == 1
    assert torch.equal(found, ODS(STEP)(x, LABELS, source, None, 4.0, seeded()))


ALL = [Clean(), Gaussian(), ODS(), ODS(scale_by_confidence=True), Adversarial()]


@pytest.mark.parametrize("perturbation", ALL, ids=repr)
def test_equal_generators_give_equal_pixels_and_nothing_else_is_touched(perturbation):
    x, teachers = grey(), deep()
    kept = x.clone()
    one, same = (perturbation(x, LABELS, teachers, None, 4.0, seeded(1)) for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert not one.requires_grad
    assert all(p.grad is None for p in teachers.parameters())
    with torch.no_grad():
        assert torch.equal(perturbation(x, LABELS, teachers, None, 4.0, seeded(1)), one)


@pytest.mark.parametrize("perturbation", ALL[1:], ids=repr)
def test_other_generators_give_other_pixels(perturbation):
    x, teachers = grey(), deep()
    one, other = (perturbation(x, LABELS, teachers, None, 4.0, seeded(seed)) for seed in (1, 2))
    assert not torch.equal(one, other)


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        ODS().step_size = 1.0


class HalfPrecision(nn.Module):
    """A network that computes in bfloat16."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.bfloat16())


@pytest.mark.parametrize("perturbation", ALL[1:], ids=repr)
@pytest.mark.parametrize("confidence", [1.0, 30.0])
def test_a_bfloat16_teacher_gives_a_float32_step_of_full_length(perturbation, confidence):
    x, teachers = grey(), deep(1, confidence)
    half = DeepEnsemble([HalfPrecision(copy.deepcopy(teachers.networks[0]))])
    exact, rough = (perturbation(x, LABELS, who, None, 1.0, seeded()) for who in (teachers, half))
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rms(rough - x), rms(exact - x), rtol=0.02, atol=0)
    assert float(cosine(rough - x, exact - x).mean()) > 0.95  # what is left is activations near 0


@pytest.mark.parametrize("perturbation", ALL[1:], ids=repr)
def test_autocast_around_the_step_changes_little(perturbation):
    x, teachers = grey(), deep(1)
    exact = perturbation(x, LABELS, teachers, None, 1.0, seeded())
    with torch.autocast("cpu", torch.bfloat16):
        rough = perturbation(x, LABELS, teachers, None, 1.0, seeded())
    assert rough.dtype == torch.float32
    assert float(cosine(rough - x, exact - x).mean()) > 0.95  # what is left is activations near 0


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale_by_confidence", [False, True])
def test_a_saturated_teacher_still_gives_a_full_step(scale_by_confidence, classes):
    x, teachers = grey(), deep(1, confidence=1e4, classes=classes)
    with torch.no_grad():
        logits = teachers.networks[0](x)
    top = logits.topk(2).values
    assert (top[:, 0] - top[:, 1] > 100).any()
    assert (logits.softmax(-1).amax(-1) == 1).any()
    moved = ODS(0.02, scale_by_confidence)(x, LABELS % classes, teachers, None, 1.0, seeded()) - x
    confidence = logits.double().softmax(-1).amax(-1) if scale_by_confidence else 1.0
    expected = torch.full((6,), 0.02, dtype=torch.float64) * confidence
    torch.testing.assert_close(rms(moved), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e30])
def test_unit_rms_of_the_smallest_and_largest_gradients(scale):
    direction = torch.randn(4, 2, 3, 3, generator=seeded())
    found = unit_rms(direction * scale)
    tolerance = 0.05 if scale < 1e-38 else 1e-5  # float32 has few digits left down there
    torch.testing.assert_close(rms(found), torch.ones(4, dtype=torch.float64), rtol=tolerance, atol=0)
    assert float(cosine(found, direction).min()) > 1 - tolerance


def test_an_image_without_a_gradient_stays_where_it_is():
    direction = torch.zeros(2, 1, 2, 2)
    direction[1, 0, 0, 0] = 1
    assert torch.equal(unit_rms(direction)[0], torch.zeros(1, 2, 2))
    assert float(rms(unit_rms(direction))[1]) == pytest.approx(1)
