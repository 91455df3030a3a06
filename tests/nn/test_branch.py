"""Members that branch at a layer: modules before it are shared and run once, and no member changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyphony._util.text import SettingError
from polyphony.ensembles import BatchEnsemble, Ensemble
from polyphony.nn import AtOnce, ConversionError, InTurn, add_members, resnet, wide_resnet
from polyphony.nn.rank_one import RankOne

MEMBERS, ROWS = 3, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Plain(nn.Module):
    """Two convolutions with norms, a classifier with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv, self.norm2 = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.stem(x)).relu()
        y = self.norm2(self.conv(y)).relu()
        return self.head(y.mean((2, 3)))


class Skip(nn.Module):
    """Adds the input of `conv` to its output."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv, self.after = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4) if norm else nn.Identity()
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x)).relu()
        return self.head((y + self.after(self.conv(y)).relu()).mean((2, 3)))


class InPlace(nn.Module):
    """The tail reads a weight without calling its layer, and changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.tail = nn.Sequential(nn.LeakyReLU(inplace=True), nn.Identity())
        self.read, self.head = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.front(x)
        y += 1
        y = self.tail(y.mul_(2))
        return self.head(F.linear(y.mean((2, 3)), self.read.weight, self.read.bias))


class Nested(nn.Module):
    """The branch gets a keyword tensor, a list, and a tensor without rows; one has its rows second."""

    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

        def forward(self, tokens: list[Tensor], *, scale: Tensor, mask: Tensor, twice: bool) -> Tensor:
            y = self.mix(tokens[0] * scale).transpose(0, 1) + tokens[1][:, None]
            return self.head((y * mask[:, None, None]).sum(1) * (2 if twice else 1))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.tail, self.scale = nn.Conv2d(3, 6, 2, 2), self.Tail(), nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x).flatten(2)
        tokens, mask = [y.permute(2, 0, 1), y.mean(2)], x.mean((1, 2, 3)) > 0.5
        return self.tail(tokens, scale=self.scale, mask=mask, twice=True)


class UsedTwice(nn.Module):
    """A layer that runs before the branch and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 5)
        self.branch = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.branch(self.mix(self.embed(x).mean((2, 3))))))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, type[nn.Module]]] = {
    "plain": (Plain, "conv", AtOnce),
    "at a norm": (Plain, "norm2", AtOnce),
    "at the classifier": (Plain, "head", AtOnce),
    "resnet, a stage": (lambda: resnet(8, 5, width=4), "stages.1", AtOnce),
    "resnet, a block": (lambda: resnet(14, 5, width=4), "stages.1.1", AtOnce),
    "wide resnet": (lambda: wide_resnet(10, 1, 5), "stages.2.0", AtOnce),
    "nested inputs": (Nested, "tail", AtOnce),
    "a layer used twice": (UsedTwice, "branch", AtOnce),
    "a skip": (Skip, "conv", InTurn),
    "in place": (InPlace, "tail", InTurn),
}


def student(name: str, **settings) -> BatchEnsemble:
    make, branch, _ = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BatchEnsemble(make(), MEMBERS, rng=seeded(), branch=branch, **settings)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.2, 0.2)
            if isinstance(layer, RankOne) and layer.bias is not None:
                layer.bias.data.normal_()
    return model.double()


def images(members: int = MEMBERS) -> Tensor:
    return torch.rand(members, ROWS, 3, 8, 8, generator=seeded(1), dtype=torch.float64)


def shared() -> Tensor:
    return images(1)[0].expand(MEMBERS, *images(1).shape[1:])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("x", [images(), shared()], ids=["rows of their own", "shared rows"])
def test_members_are_the_plain_networks(name: str, x: Tensor):
    model = student(name).eval()
    assert type(model.network) is NETWORKS[name][2]
    with torch.no_grad():
        expected = torch.stack([model.member(j)(rows) for j, rows in enumerate(x)])
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.folded()(x), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(expected[0], expected[1], rtol=1e-2)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_runs_before_the_branch_has_no_members(name: str):
    model, plain = student(name), NETWORKS[name][0]()
    branch = model.network.front.branch
    order: list[str] = []
    for layer, module in plain.named_modules():
        module.register_forward_pre_hook(lambda module, x, layer=layer: order.append(layer))
    plain(images(1)[0].float())
    before = set(order[: order.index(branch)])
    for layer, module in model.network.network.named_modules():
        if isinstance(module, RankOne):
            assert layer not in before
        elif layer not in before and isinstance(module, nn.Conv2d | nn.Linear):
            assert layer.endswith(".shared")


def count_rows(model: nn.Module) -> tuple[Counter[str], Counter[str]]:
    """Records how often modules run from now on, and on how many rows."""
    calls: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for name, module in model.named_modules():

        def counted(*inputs: Tensor, name: str = name, forward: Callable = module.forward) -> Tensor:
            outputs = forward(*inputs)
            calls[name] += 1
            rows[name] += len(outputs)
            return outputs

        module.forward = counted
    return calls, rows


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["plain", "resnet, a stage", "a skip", "in place"])
def test_the_front_runs_once_on_the_rows_of_one_member(name: str, mode: str):
    model = student(name).train(mode == "train")
    model(shared())  # the first images of a size are tried
    calls, rows = count_rows(model.network.network)
    model(shared())
    front = model.network.front
    assert all(calls[name] == 1 and rows[name] == ROWS for name in front.modules)
    assert rows["head" if "head" in rows else "classifier"] == MEMBERS * ROWS


def test_a_norm_in_the_front_counts_the_rows_of_one_member():
    for name in ("plain", "a skip"):
        model = student(name).train()
        front = model.network.network
        norm = front.norm1 if name == "plain" else front.norm
        norm.reset_running_stats()
        x = shared()
        with torch.no_grad():
            stem = front.stem(x[0])
        model(x)
        assert norm.num_batches_tracked == 1
        torch.testing.assert_close(norm.running_mean, 0.1 * stem.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * stem.var((0, 2, 3)))


def by_hand(model: BatchEnsemble, x: Tensor) -> Tensor:
    """`Plain` with the branch `conv`, in training, computed from formulas with a loop over members."""
    network = model.network.network

    def norm(y: Tensor, layer: nn.BatchNorm2d) -> Tensor:
        mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), keepdim=True, correction=0)
        weight, bias = layer.weight[:, None, None], layer.bias[:, None, None]
        return (y - mean) / (var + layer.eps).sqrt() * weight + bias

    front = norm(network.stem(x), network.norm1).relu()
    conv, head = network.conv, network.head
    blocks = []
    for j in range(MEMBERS):
        scaled = F.conv2d(front * conv.r[j][:, None, None], conv.shared.weight) * conv.s[j][:, None, None]
        blocks.append(scaled + conv.bias[j][:, None, None])
    y = norm(torch.cat(blocks), network.norm2).relu().mean((2, 3)).unflatten(0, (MEMBERS, -1))
    return torch.stack(
        [F.linear(y[j] * head.r[j], head.shared.weight) * head.s[j] + head.bias[j] for j in range(MEMBERS)]
    )


def gradients(model: nn.Module, outputs: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    target = torch.randn(outputs.shape, generator=seeded(3), dtype=torch.float64)
    (outputs * target).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def test_gradients_in_training_are_those_of_a_naive_implementation():
    model = student("plain").train()
    expected = by_hand(model, shared()[0])
    outputs = model(shared())
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
    computed = gradients(model, outputs)
    torch.testing.assert_close(computed, gradients(model, by_hand(model, shared()[0])), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_rows_that_each_member_has_for_itself(name: str):
    """In eval mode a front that sees every row once, or M times, is the same function."""
    model = student(name).eval()
    computed = gradients(model, model(shared()))
    own = gradients(model, model(shared().contiguous()))
    torch.testing.assert_close(computed, own, rtol=1e-9, atol=1e-9)


def test_gradients_of_the_images_are_the_sum_over_members():
    model = student("plain").eval()
    x = images(1)[0].requires_grad_()
    target = torch.randn(MEMBERS, ROWS, 5, generator=seeded(3), dtype=torch.float64)
    (computed,) = torch.autograd.grad((model(x.expand(MEMBERS, *x.shape)) * target).sum(), x)
    plain = sum(torch.autograd.grad((model.member(j)(x) * target[j]).sum(), x)[0] for j in range(MEMBERS))
    torch.testing.assert_close(computed, plain, rtol=1e-9, atol=1e-9)


def test_the_layout_of_images_is_kept_where_rows_are_repeated():
    model = student("resnet, a stage").float()
    formats: list[bool] = []
    block = model.network.network.stages[1]
    block.register_forward_pre_hook(
        lambda module, x: formats.append(x[0].is_contiguous(memory_format=torch.channels_last))
    )
    model(shared().float())
    assert formats == [True]


def test_a_network_keeps_the_users_hooks_and_members_have_no_repeat():
    network = Plain()
    calls: list[int] = []
    network.norm2.register_forward_pre_hook(lambda module, x: calls.append(len(x[0])))
    model = BatchEnsemble(network, MEMBERS, branch="norm2")
    assert not calls
    model(shared().float())
    assert calls == [MEMBERS * ROWS]
    assert len(model.member(0).norm2._forward_pre_hooks) == 1
    assert model.member(0)(images(1)[0].float()).shape == (ROWS, 5)


def test_a_share_chooses_the_boundary():
    def branch(share: float, network: nn.Module | None = None) -> str:
        return add_members(network or resnet(20, 5, width=4), 2, branch=share).front.branch

    assert branch(0.34) == "stages.1"
    assert branch(0.66) == "stages.2"
    assert branch(0.01) == "bn"  # the stem's multiply-adds are the least that there is to share
    assert branch(0.999) == "classifier"
    assert branch(0.5, Plain()) == "norm1"  # both sides of the nearer boundary


class Repeated(nn.Module):
    """Layers that run twice, never, or are only indexed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice, self.never = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 5)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(self.stem(x)).mean((2, 3))
        return self.blocks[1](self.twice(self.blocks[0](y)))


REFUSALS = {
    "stem": "nothing with weights runs before 'stem': name a later layer, or leave out `branch`",
    "": "nothing with weights runs before ''",
    "twice": "'twice', which runs 2 times: name a layer that runs once",
    "never": "'never', which never runs",
    "blocks": "'blocks', which never runs: name one inside it, for example 'blocks.0'",
    "block.1": "the network has no layer 'block.1' for members to branch at: did you mean 'blocks.1'?",
}


@pytest.mark.parametrize("branch", REFUSALS)
def test_a_branch_that_is_none_is_refused_in_one_sentence(branch: str):
    with pytest.raises(ConversionError, match=re.escape(REFUSALS[branch])):
        add_members(Repeated(), 2, branch=branch)


@pytest.mark.parametrize("branch", [0, 1, 0.0, 1.0, -0.5, float("nan"), True, ["stem"]])
def test_a_share_is_above_zero_and_below_one(branch: object):
    with pytest.raises(SettingError, match="branch must be "):
        add_members(Repeated(), 2, branch=branch)


def test_a_skip_across_the_branch_is_named_where_members_cannot_run_in_turn():
    with pytest.raises(ConversionError, match="what is computed before 'conv' is used after it, too"):
        add_members(Skip(norm=True), 2, branch="conv")
    assert isinstance(add_members(Skip(norm=True), 2, branch="conv", member_norm=True), InTurn)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_branch_that_is_recomputed_for_its_gradients_is_an_error_and_no_wrong_gradient(reentrant: bool):
    class Recomputed(Plain):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(self.stem(x)).relu()
            y = checkpoint(self.conv, y, use_reentrant=reentrant) if torch.is_grad_enabled() else self.conv(y)
            return self.head(self.norm2(y).relu().mean((2, 3)))

    model = BatchEnsemble(Recomputed(), MEMBERS, branch="conv").double()
    x = torch.rand(2 * MEMBERS, 3, 8, 8, dtype=torch.float64)  # rows that divide among members
    outputs = model(x.expand(MEMBERS, *x.shape))
    with pytest.raises(RuntimeError):
        outputs.sum().backward()


def test_what_has_no_members_may_be_in_the_front():
    network = nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 4, 1), nn.Flatten(), nn.Linear(256, 5))
    with pytest.raises(ConversionError, match="Conv1d has no rank-one form"):
        add_members(network, 2, size=(3, 8, 8))
    model: Ensemble = BatchEnsemble(network, MEMBERS, branch="2", size=(3, 8, 8)).double()
    x = shared()
    expected = torch.stack([model.member(j)(rows) for j, rows in enumerate(x)])
    torch.testing.assert_close(model(x), expected)
