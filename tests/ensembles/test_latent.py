from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.compute.parallel import Group
from polyphony.data import Split
from polyphony.distill import CrossEntropy, Distill
from polyphony.distill.perturb import Clean
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, LatentBE
from polyphony.nn import factor_distance, resnet
from polyphony.nn.rank_one import RankOne
from polyphony.training.fit import Plan, Training, fit

DOUBLE = torch.float64
MEMBERS = 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0) -> nn.Module:
    """A stem with stride, a grouped convolution with a bias, BatchNorm, a linear layer with a bias."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1, groups=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(54, 5),
        )


def layers(model: nn.Module) -> list[RankOne]:
    return [module for module in model.modules() if isinstance(module, RankOne)]


def images(rows: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(MEMBERS, rows, 2, 6, 6, generator=seeded(7), dtype=dtype)


def trained(steps: int = 8, keep: tuple[str, ...] = ()) -> LatentBE:
    """Different members, with biases and norms moved from their defaults, in float64."""
    student = LatentBE(network().double(), MEMBERS, keep=keep)
    optimiser = torch.optim.SGD(student.parameters(), 0.3, momentum=0.9)
    for step in range(steps):
        rng = seeded(step)
        x = torch.rand(1, 8, 2, 6, 6, generator=rng, dtype=DOUBLE).expand(MEMBERS, -1, -1, -1, -1)
        goals = torch.randint(5, (MEMBERS, 8), generator=rng)  # another one for each member
        optimiser.zero_grad()
        F.cross_entropy(student(x).flatten(0, 1), goals.flatten()).backward()
        optimiser.step()
    student.zero_grad()
    return student


# The start


def test_factors_start_at_exactly_one_and_every_member_is_the_network():
    plain, student, x = network().eval(), LatentBE(network(), MEMBERS).eval(), images()
    assert len(layers(student)) == 3
    assert all(torch.equal(f, torch.ones_like(f)) for layer in layers(student) for f in (layer.r, layer.s))
    for j, out in enumerate(student(x)):
        torch.testing.assert_close(out, plain(x[j]))
    assert factor_distance(student) == 0


def test_with_a_branch_its_members_start_as_the_network_and_the_front_has_no_factors():
    plain, student, x = network().eval(), LatentBE(network(), MEMBERS, branch="2").eval(), images()
    assert len(layers(student)) == 2
    for j, out in enumerate(student(x[:1].expand_as(x))):
        torch.testing.assert_close(out, plain(x[0]), msg=f"member {j}")
    torch.testing.assert_close(student.merge()(x[0]), plain(x[0]))


def test_it_draws_nothing():
    before = torch.random.get_rng_state()
    LatentBE(network(), MEMBERS)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_has_the_parameters_of_a_batch_ensemble_and_merges_to_those_of_one_network():
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    student = LatentBE(network(), MEMBERS)
    assert count(student) == count(BatchEnsemble(network(), MEMBERS))
    assert [n for n, _ in student.merge().named_parameters()] == [n for n, _ in network().named_parameters()]
    assert count(student.merge()) == count(network())


# The step


def by_hand(values: Tensor, gradients: list[Tensor], centre: float, gain: float, plan: Plan) -> Tensor:
    """SGD with momentum, a coupled decay towards a centre and gradients multiplied by a number."""
    momentum = torch.zeros_like(values)
    for gradient in gradients:
        momentum = plan.momentum * momentum + gain * gradient + plan.weight_decay * (values - centre)
        values = values - plan.learning_rate * momentum
    return values


class Constant(nn.Module):
    """A loss whose gradients are the same in every step and for all weights."""

    def __init__(self, student: LatentBE) -> None:
        super().__init__()
        self.gradients = {
            name: torch.randn(value.shape, generator=seeded(len(name)), dtype=DOUBLE)
            for name, value in student.named_parameters()
        }

    def forward(self, student: LatentBE) -> Tensor:
        return sum((value * self.gradients[name]).sum() for name, value in student.named_parameters())


def centre_and_gain(name: str) -> tuple[float, float]:
    """The claims of the method: weight decay pulls factors to one, members' own gradients count M times."""
    if "parametrizations" in name:
        return 1.0, MEMBERS
    return 0.0, MEMBERS if name.endswith("bias") and name.split(".")[1] in ("3", "7") else 1.0


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"weight_decay": 0.0}], ids=str)
def test_three_steps_are_those_of_a_hand_written_sgd(settings: dict[str, Any]):
    student = trained(2)
    plan = Plan(epochs=1, warm_up=0, **{"learning_rate": 0.1, "weight_decay": 0.2} | settings)
    training, loss = Training(student, plan, seeded(), Group()), Constant(student)
    training.set_rate(0)
    start = {name: value.detach().clone() for name, value in student.named_parameters()}
    for _ in range(3):
        training.optimiser.zero_grad()
        loss(student).backward()
        training.optimiser.step()
    for name, value in student.named_parameters():
        centre, gain = centre_and_gain(name)
        expected = by_hand(start[name] + centre, 3 * [loss.gradients[name]], centre, gain, plan)
        torch.testing.assert_close(value.detach() + centre, expected)


def test_one_step_of_fit_is_the_chain_rule_on_factors_themselves():
    """From the loss to the factors, with autograd on merged weights of every member, not on deviations."""
    student = trained(3)
    plan = Plan(epochs=1, learning_rate=0.1, weight_decay=0.2, warm_up=0)
    reference = copy.deepcopy(student).train()
    layer = layers(reference)[1]  # grouped, with a bias
    r, s, bias, weight = (
        v.detach().clone().requires_grad_() for v in (layer.r, layer.s, layer.bias, layer.shared.weight)
    )
    x = torch.rand(8, 2, 6, 6, generator=seeded(1), dtype=DOUBLE)
    y = torch.randint(5, (8,), generator=seeded(2))

    def grouped(module: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
        rows = inputs[0].unflatten(0, (MEMBERS, -1))
        outs = []
        for j in range(MEMBERS):
            outs.append(F.conv2d(rows[j] * r[j][:, None, None], weight, None, padding=1, groups=2))
            outs[-1] = outs[-1] * s[j][:, None, None] + bias[j][:, None, None]
        return torch.cat(outs)

    layer.register_forward_hook(grouped)
    CrossEntropy()(reference, x, y, seeded())["loss"].backward()
    training = Training(student.train(), plan, seeded(), Group())
    training.set_rate(0)
    CrossEntropy()(student, x, y, seeded())["loss"].backward()
    training.optimiser.step()
    after = layers(student)[1]
    with torch.no_grad():
        for actual, value, centre, gain in (
            (after.r, r, 1.0, MEMBERS),
            (after.s, s, 1.0, MEMBERS),
            (after.bias, bias, 0.0, MEMBERS),
            (after.shared.weight, weight, 0.0, 1.0),
        ):
            torch.testing.assert_close(actual, by_hand(value, [value.grad], centre, gain, plan))


def test_without_gradients_weight_decay_brings_factors_to_one():
    student = trained()
    plan = Plan(epochs=1, learning_rate=0.1, weight_decay=1.0, warm_up=0)
    training = Training(student, plan, seeded(), Group())
    training.set_rate(0)
    apart = factor_distance(student)
    for parameter in student.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(300):
        training.optimiser.step()
    assert apart > 0.05
    for layer in layers(student):
        torch.testing.assert_close(layer.r, torch.ones_like(layer.r), rtol=0, atol=1e-4)
        torch.testing.assert_close(
            layer.shared.weight, torch.zeros_like(layer.shared.weight), rtol=0, atol=1e-4
        )


# The end


def averaged_weight(layer: RankOne) -> Tensor:
    """W_oi · mean_j s_jo · mean_j r_ji, entry by entry."""
    weight = layer.shared.weight.detach().clone()
    groups = getattr(layer.shared, "groups", 1)
    outputs, inputs = weight.shape[:2]
    for o in range(outputs):
        for i in range(inputs):
            column = o // (outputs // groups) * inputs + i
            mean_s = sum(layer.s[j, o].item() for j in range(MEMBERS)) / MEMBERS
            mean_r = sum(layer.r[j, column].item() for j in range(MEMBERS)) / MEMBERS
            weight[o, i] *= mean_s * mean_r
    return weight


def test_the_merged_network_has_the_averaged_factors_in_its_weights():
    student = trained()
    assert factor_distance(student) > 0.05
    merged = student.merge()
    for place, layer in zip((0, 3, 7), layers(student), strict=True):
        torch.testing.assert_close(merged[place].weight.detach(), averaged_weight(layer))
        if layer.bias is not None:
            torch.testing.assert_close(merged[place].bias, layer.bias.mean(0))


def with_averaged_factors(student: LatentBE) -> LatentBE:
    """A copy whose members all have the mean factors and biases, set in its state dict."""
    same = copy.deepcopy(student)
    state = same.state_dict()
    for name, value in state.items():
        if "parametrizations" in name or centre_and_gain(name)[1] == MEMBERS:
            state[name] = torch.stack(MEMBERS * [sum(value) / MEMBERS])
    same.load_state_dict(state)
    return same


@pytest.mark.parametrize("keep", [(), ("0",)], ids=["all", "stem kept"])
def test_the_merged_network_is_the_student_with_averaged_factors(keep):
    student, x = trained(keep=keep).eval(), images(dtype=DOUBLE)
    merged, averaged = student.merge().eval(), with_averaged_factors(student)
    for j, out in enumerate(averaged(x)):
        torch.testing.assert_close(merged(x[j]), out)
        assert not torch.allclose(merged(x[j]), student(x)[j])


def test_merging_is_a_copy():
    student = trained()
    before = copy.deepcopy(student.state_dict())
    merged = student.merge()
    for parameter in merged.parameters():
        parameter.data.zero_()
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())


# The whole way


def test_it_is_distilled_saved_read_back_and_merged():
    data = Split(
        torch.randint(256, (48, 2, 6, 6), generator=seeded(1)).to(torch.uint8),
        torch.randint(5, (48,), generator=seeded(2)),
    )
    student = LatentBE(network(1), 2)
    teachers = DeepEnsemble([resnet(8, 5, channels=2, width=4, rng=seeded(j)) for j in range(2)])
    plan = Plan(epochs=3, batch=16, warm_up=0)
    log = fit(student, Distill(teachers, perturb=Clean()), data, data, plan, seeded())
    assert log[-1]["loss"] < log[0]["loss"]
    assert factor_distance(student) > 0
    again = LatentBE(network(2), 2)
    again.load_state_dict(student.state_dict())
    x = images()[0]
    assert torch.equal(again.merge().eval()(x), student.merge().eval()(x))
