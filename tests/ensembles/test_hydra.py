from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyphony.ensembles import Hydra
from polyphony.nn import resnet, wide_resnet

MEMBERS, CLASSES = 3, 5
DOUBLE = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(bias: bool = True) -> nn.Module:
    """A network with random statistics in every norm."""
    net = resnet(8, CLASSES, channels=2, width=4, rng=seeded()).double()
    if not bias:
        net.classifier.bias = None
    net.train()(torch.rand(16, 2, 6, 6, generator=seeded(1), dtype=DOUBLE))
    return net.eval()


def hydra(bias: bool = True) -> Hydra:
    student = Hydra(network(bias), MEMBERS, rng=seeded(2)).eval()
    for parameter in student.heads.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(3), dtype=DOUBLE)
    return student


def images() -> Tensor:
    return torch.rand(MEMBERS, 4, 2, 6, 6, generator=seeded(7), dtype=DOUBLE)


def counted(trunk: nn.Module) -> list[int]:
    """Records how many rows the trunk gets in each call."""
    rows: list[int] = []
    trunk.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    return rows


@pytest.mark.parametrize("bias", [True, False])
def test_each_member_is_the_trunk_with_a_linear_layer_of_its_own(bias):
    plain, student, x = network(bias), hydra(bias), images()
    features: list[Tensor] = []
    plain.classifier.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
    out = student(x)
    for j in range(MEMBERS):
        plain(x[j])
        head_bias = student.heads.bias[j] if bias else None
        torch.testing.assert_close(out[j], F.linear(features[-1], student.heads.weight[j], head_bias))
        torch.testing.assert_close(out[j], student.member(j)(x[j]))
        names = [name for name, _ in student.member(j).named_parameters()]
        assert names == [name for name, _ in plain.named_parameters()]


@pytest.mark.parametrize("training", [False, True])
def test_shared_rows_go_through_the_trunk_once_and_give_the_same(training):
    one = hydra().train(training)
    other = copy.deepcopy(one)
    once, apart = counted(one.trunk), counted(other.trunk)
    x = images()[0]
    shared = x.expand(MEMBERS, *x.shape)
    ours, theirs = one(shared), other(shared.clone())
    assert once == [4]
    assert apart == [MEMBERS * 4]
    torch.testing.assert_close(ours, theirs)
    pull = torch.randn(ours.shape, generator=seeded(4), dtype=DOUBLE)
    for out in (ours, theirs):
        (out * pull).sum().backward()
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda text, name=name: f"{name}: {text}")


def test_heads_start_apart_without_biases_and_the_trunk_as_it_was():
    original = network()
    before = copy.deepcopy(original.state_dict())
    student = Hydra(original, MEMBERS, rng=seeded())
    weight = student.heads.weight
    bound = original.classifier.in_features**-0.5
    assert weight.unique().numel() == weight.numel()
    assert 0.9 * bound < weight.abs().max() <= bound
    torch.testing.assert_close(
        weight.std(), torch.tensor(bound / 3**0.5, dtype=DOUBLE), rtol=0.15, atol=0
    )  # uniform
    assert not student.heads.bias.any()
    trunk = {f"trunk.{name}": value for name, value in before.items() if "classifier" not in name}
    assert all(torch.equal(student.state_dict()[name], value) for name, value in trunk.items())
    student.trunk.stem.weight.data.zero_()
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())


def test_equal_generators_give_equal_heads():
    one, same, other = (Hydra(network(), 2, rng=seeded(seed)).heads.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_its_parameters_are_the_networks_and_more_classifiers():
    with torch.device("meta"):
        student = Hydra(wide_resnet(28, 2, 100), 4)
        plain = sum(p.numel() for p in wide_resnet(28, 2, 100).parameters())
    assert sum(p.numel() for p in student.parameters()) == plain + 3 * (128 * 100 + 100)


class Unordered(nn.Module):
    """A network that registers its classifier before its body."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(8, CLASSES)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x))


def test_the_classifier_may_be_named():
    student, x = Hydra(Unordered(), 2, head="top", rng=seeded()), images()[:2].float()
    expected = torch.stack([student.member(j)(x[j]) for j in range(2)])
    torch.testing.assert_close(student(x), expected)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, r"layer 'body.2' \(ReLU\) is not a plain Linear"),
        ("body", r"layer 'body' \(Sequential\) is not a plain Linear"),
        ("fc", "the network has no layer 'fc'"),
    ],
)
def test_a_network_without_that_classifier_is_refused(head, message):
    with pytest.raises(ValueError, match=message):
        Hydra(Unordered(), 2, head=head)


def test_a_layer_that_is_not_the_end_is_noticed():
    student = Hydra(nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Linear(8, CLASSES)), 2, head="1")
    with pytest.raises((ValueError, RuntimeError)):
        student(images()[:2].float())
    wider = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ZeroPad1d(1))
    with pytest.raises(ValueError, match="does more after its classifier '1'"):
        Hydra(wider, 2, head="1")(images()[:2].float())


@pytest.mark.parametrize("j", [-1, 3])
def test_a_member_that_is_not_there_is_refused(j):
    with pytest.raises(IndexError, match=f"there is no member {j}: members are 0 to 2"):
        hydra().member(j)


def test_a_hydra_of_no_heads_is_refused():
    with pytest.raises(ValueError, match="members must be greater than 0"):
        Hydra(network(), 0)


class LogProbabilities(Unordered):
    """A network with an operation after its classifier that does not change the shape."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(super().forward(x), 1)


def test_a_network_that_does_more_to_its_logits_is_noticed_every_time():
    student, x = Hydra(LogProbabilities(), 2, head="top", rng=seeded()), images()[:2].float()
    for _ in range(2):
        with pytest.raises(ValueError, match="does more after its classifier 'top'"):
            student(x)


def test_looking_for_the_end_changes_nothing():
    one, x = hydra().train(), images()
    other = copy.deepcopy(one)
    other.checked = True
    torch.testing.assert_close(one(x), other(x), rtol=0, atol=0)
    assert one.checked
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
