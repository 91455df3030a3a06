from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from polyphony.data import Split, Splits
from polyphony.distill import CrossEntropy, Distill, match_step_size
from polyphony.distill.match import STEP_SIZES, is_at_end
from polyphony.distill.perturb import ODS, Clean, Gaussian
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, Single
from polyphony.nn import resnet
from polyphony.training.predict import batch_for, predict

MEMBERS, BATCH, CLASSES = 3, 4, 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int) -> nn.Module:
    return resnet(8, CLASSES, channels=2, width=4, rng=seeded(seed)).double()


def batch() -> tuple[Tensor, Tensor]:
    x = torch.rand(BATCH, 2, 6, 6, generator=seeded(1), dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=seeded(2))


@dataclass(frozen=True)
class Shifted:
    """A perturbation without chance."""

    by: float = 0.05

    def __call__(self, x, y, teachers, student, temperature, rng):
        return (x + self.by * y.view(-1, 1, 1, 1)).clamp(0, 1)


def naive_log_softmax(logits: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(z) for z in logits))
    return [z - total for z in logits]


def algorithm_1(
    student: BatchEnsemble, teachers: list[nn.Module], x: Tensor, x_tilde: Tensor, y: Tensor, alpha, tau
) -> tuple[float, float, float]:
    """(loss, CE, KD) by a loop over members and examples; the student's passes are one call each."""
    clean = student(x.expand(MEMBERS, *x.shape)).tolist()
    same = x_tilde is x
    perturbed = clean if same else student(x_tilde.expand(MEMBERS, *x.shape)).tolist()
    ce, kd = [], []
    for j, teacher in enumerate(teachers):
        with torch.no_grad():
            targets = teacher.eval()(x_tilde).tolist()
        for i in range(BATCH):
            if y[i] >= 0:
                ce.append(-naive_log_softmax(clean[j][i])[y[i]])
            log_p = naive_log_softmax([z / tau for z in targets[i]])
            log_q = naive_log_softmax([z / tau for z in perturbed[j][i]])
            kd.append(math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True)))
    mean_ce, mean_kd = math.fsum(ce) / len(ce), tau**2 * math.fsum(kd) / len(kd)
    return (1 - alpha) * mean_ce + alpha * mean_kd, mean_ce, mean_kd


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("tau", [1.0, 4.0])
@pytest.mark.parametrize("perturbation", [Clean(), Shifted()], ids=repr)
def test_the_loss_is_algorithm_1_by_an_explicit_loop(perturbation, tau, alpha):
    networks = [small(j) for j in range(MEMBERS)]
    student = BatchEnsemble(small(9), MEMBERS, rng=seeded()).train()
    x, y = batch()
    x_tilde = perturbation(x, y, None, None, tau, None)
    expected = algorithm_1(copy.deepcopy(student), copy.deepcopy(networks), x, x_tilde, y, alpha, tau)
    loss = Distill(DeepEnsemble(networks), alpha, tau, perturbation)
    parts = loss(student, x, y, seeded())
    found = tuple(float(parts[name].detach()) for name in ("loss", "ce", "kd"))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("without", [[], [1], [0, 3]])
@pytest.mark.parametrize("perturbation", [Clean(), Shifted()], ids=repr)
def test_images_without_labels_have_no_label_loss(perturbation, without):
    networks = [small(j) for j in range(MEMBERS)]
    student = BatchEnsemble(small(9), MEMBERS, rng=seeded()).train()
    x, y = batch()
    y[without] = -1
    x_tilde = perturbation(x, y, None, None, 2.0, None)
    expected = algorithm_1(copy.deepcopy(student), copy.deepcopy(networks), x, x_tilde, y, 0.3, 2.0)
    parts = Distill(DeepEnsemble(networks), 0.3, 2.0, perturbation, unlabelled=True)(student, x, y, seeded())
    found = tuple(float(parts[name].detach()) for name in ("loss", "ce", "kd"))
    assert found == pytest.approx(expected, rel=1e-6)
    right = student(x.expand(MEMBERS, *x.shape)).argmax(-1) == y
    assert float(parts["acc"]) == pytest.approx(float(right.sum()) / (MEMBERS * (BATCH - len(without))))


def test_a_label_of_minus_one_is_refused_where_all_images_have_labels():
    x, y = batch()
    y[0] = -1
    loss = Distill(DeepEnsemble([small(j) for j in range(MEMBERS)]), perturb=Clean())
    with pytest.raises(ValueError, match="there is a label -1"):
        loss(BatchEnsemble(small(9), MEMBERS, rng=seeded()), x, y, seeded())


def test_gradients_reach_the_student_and_only_the_student():
    teachers = DeepEnsemble([small(j).float() for j in range(MEMBERS)])
    student = BatchEnsemble(small(9).float(), MEMBERS, rng=seeded())
    x, y = batch()
    Distill(teachers)(student, x.float(), y, seeded())["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in student.parameters())
    assert all(p.grad is None for p in teachers.parameters())


def test_the_loss_is_linear_in_alpha():
    teachers = DeepEnsemble([small(j) for j in range(MEMBERS)])
    x, y = batch()
    student = BatchEnsemble(small(9), MEMBERS, rng=seeded()).eval()
    losses = [
        float(Distill(teachers, alpha, 4.0, Shifted())(student, x, y, seeded())["loss"].detach())
        for alpha in (0.0, 0.25, 1.0)
    ]
    assert losses[1] == pytest.approx(0.75 * losses[0] + 0.25 * losses[2], rel=1e-12)


@pytest.mark.parametrize(("perturbation", "passes"), [(Clean(), 1), (Gaussian(), 2), (ODS(), 2)], ids=repr)
def test_one_student_pass_when_clean_two_when_perturbed(perturbation, passes):
    teachers = DeepEnsemble([small(j).float() for j in range(MEMBERS)])
    student = BatchEnsemble(small(9).float(), MEMBERS, rng=seeded())
    calls = []
    student.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0]))
    x, y = batch()
    Distill(teachers, perturb=perturbation)(student, x.float(), y, seeded())
    assert len(calls) == passes
    assert torch.equal(calls[0][0], x.float())
    assert all(torch.equal(call[0], call[j]) for call in calls for j in range(MEMBERS))


def test_teachers_of_another_number_are_refused():
    x, y = batch()
    loss = Distill(DeepEnsemble([small(0)]), perturb=Clean())
    with pytest.raises(ValueError, match="the student has 3 members, the ensemble 1 teacher"):
        loss(BatchEnsemble(small(9), MEMBERS), x, y, seeded())


def test_from_scratch_is_cross_entropy_alone():
    student = BatchEnsemble(small(9), MEMBERS, rng=seeded()).eval()
    x, y = batch()
    parts = CrossEntropy()(student, x, y, seeded())
    logits = student(x.expand(MEMBERS, *x.shape)).tolist()
    terms = [-naive_log_softmax(logits[j][i])[y[i]] for j in range(MEMBERS) for i in range(BATCH)]
    assert float(parts["loss"].detach()) == pytest.approx(math.fsum(terms) / len(terms), rel=1e-9)
    right = [
        max(range(CLASSES), key=row.__getitem__) == y[i] for rows in logits for i, row in enumerate(rows)
    ]
    assert float(parts["acc"]) == pytest.approx(sum(right) / len(right))


def test_a_teacher_is_trained_on_all_examples_in_order():
    x, y = batch()
    network = small(1).eval()
    expected = torch.nn.functional.cross_entropy(network(x), y)
    torch.testing.assert_close(CrossEntropy()(Single(network), x, y, seeded())["loss"], expected)


# The step size at which teachers disagree as they do on held-out images


def splits(n: int = 40) -> Splits:
    def part(seed: int, low: int, high: int) -> Split:
        images = torch.randint(low, high, (n, 2, 6, 6), generator=seeded(seed)).to(torch.uint8)
        return Split(images, torch.randint(CLASSES, (n,), generator=seeded(seed + 1)))

    return Splits("noise", tuple("abcde"), part(1, 100, 156), part(3, 0, 256), part(5, 0, 256))


def disagreement(perturbation, teachers: DeepEnsemble, data: Splits, seed: int) -> float:
    rng = seeded(seed)
    moved = predict(teachers, data.train, before=lambda x, y: perturbation(x, y, teachers, None, 4.0, rng))
    return moved.mean_kld()


@pytest.mark.parametrize("share", [0.9, 1.0])
@pytest.mark.parametrize("make", [ODS, Gaussian])
def test_the_matched_step_size_lands_on_its_goal(make, share):
    teachers, data = DeepEnsemble([small(j).float() for j in range(MEMBERS)]), splits()
    goal = share * predict(teachers, data.valid).mean_kld()
    assert disagreement(Clean(), teachers, data, 0) < goal  # else there is nothing to find
    size = match_step_size(make, teachers, data, 4.0, seeded(7), share)
    assert STEP_SIZES[0] < size < STEP_SIZES[1]
    assert disagreement(make(size), teachers, data, 7) == pytest.approx(goal, rel=0.05)


def test_where_no_step_reaches_the_goal_the_nearer_end_is_taken():
    teachers, data = DeepEnsemble([small(j).float() for j in range(MEMBERS)]), splits()
    far = match_step_size(Gaussian, teachers, data, 4.0, seeded(), share=1e6)
    near = match_step_size(Gaussian, teachers, data, 4.0, seeded(), share=1e-6)
    assert far == pytest.approx(STEP_SIZES[1], rel=0.01)
    assert near == pytest.approx(STEP_SIZES[0], rel=0.01)
    assert is_at_end(far)
    assert is_at_end(near)
    assert not is_at_end(1 / 255)


def test_equal_generators_match_equal_step_sizes_whatever_memory_there_is(monkeypatch):
    teachers, data = DeepEnsemble([small(j).float() for j in range(MEMBERS)]), splits()
    sizes = []
    for memory in (2**34, 2**20):
        monkeypatch.setattr("polyphony.training.predict.memory", lambda memory=memory: memory)
        sizes.append(match_step_size(ODS, teachers, data, 4.0, seeded(7)))
    assert batch_for(teachers, data.train.images.shape[1:]) < len(data.train)
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)
