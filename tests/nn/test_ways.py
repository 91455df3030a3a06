from __future__ import annotations

import copy

import pytest
import torch
from test_rank_one import CONVOLUTIONS, DOUBLE, rows_of, with_members
from torch import Tensor, nn

from cases import FORMS, loss_of, seeded, split
from polyphony.data import Augmentation
from polyphony.nn import ways
from polyphony.nn.rank_one import RankOne
from polyphony.nn.ways import fastest, rank_ones, set_way
from polyphony.training.fit import Plan, fit

CPU = torch.device("cpu")
LAYERS = {name: lambda kind=kind: nn.Conv2d(4, 8, **kind) for name, kind in CONVOLUTIONS.items()} | {
    "linear": lambda: nn.Linear(4, 6),
    "linear, no bias": lambda: nn.Linear(4, 6, bias=False),
}
PLAN = Plan(epochs=4, batch=16, learning_rate=0.05, warm_up=1, augment=Augmentation(1, True))


def passes(layer: RankOne, way: str, x: Tensor) -> list[Tensor]:
    """The outputs of a layer, and the gradients of a sum of them."""
    layer.way, rows = way, x.clone().requires_grad_()
    out = layer(rows)
    weights = torch.randn(out.shape, generator=seeded(5), dtype=DOUBLE).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((weights * out).sum(), [rows, *layer.parameters()])]


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_every_way_is_the_same_function_with_the_same_gradients(make, dtype, allowed):
    layer = with_members(make(), 3).to(dtype)
    x = rows_of(3, 2, *((5, 4) if isinstance(layer.shared, nn.Linear) else (4, 7, 8))).to(dtype)
    expected = passes(layer, "weights", x)
    assert len(layer.ways()) == 3 - isinstance(layer.shared, nn.Linear)
    for way in layer.ways():
        for found, value in zip(passes(layer, way, x), expected, strict=True):
            assert float((found - value).abs().max()) <= allowed * max(1.0, float(value.abs().max()))


class Standardised(nn.Conv2d):
    """A layer that does something to its weight first."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class StandardisedInside(nn.Conv2d):
    """The same, deeper inside."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


@pytest.mark.parametrize("kind", [Standardised, StandardisedInside])
def test_a_layer_with_a_forward_of_its_own_has_one_way_and_keeps_it(kind):
    layer = with_members(kind(4, 8, 3), 2)
    set_way(layer, "activations", CPU)
    assert (layer.way, list(layer.ways())) == ("weights", ["weights"])


def test_a_way_set_by_hand_is_taken_where_there_is_one_and_the_cpu_stays_as_it_was():
    student = FORMS["batch_ensemble"]()
    set_way(student, "auto", CPU)
    assert {layer.way for layer in rank_ones(student).values()} == {"weights"}
    set_way(student, "grouped", CPU)
    assert sorted(layer.way for layer in rank_ones(student).values()) == ["grouped", "weights"]


def test_the_fastest_way_is_that_of_the_shortest_time():
    now, weight = [0.0], torch.ones(3, requires_grad=True)

    def taking(seconds: float):
        def way(x: Tensor) -> Tensor:
            now[0] += seconds
            return x * weight

        return way

    ways = {"slow": taking(3.0), "fast": taking(1.0), "middling": taking(2.0)}
    assert fastest(ways, torch.ones(2, 3), [weight], clock=lambda: now[0]) == "fast"
    assert weight.grad is None


class Kept:
    """A checkpoint in memory: every state that was saved."""

    def __init__(self, *states: dict[str, object]) -> None:
        self.states = list(states)

    def load(self) -> dict[str, object] | None:
        return copy.deepcopy(self.states[-1]) if self.states else None

    def save(self, state: dict[str, object]) -> None:
        self.states.append(copy.deepcopy(state))


def trained(checkpoint: Kept, plan: Plan = PLAN) -> dict[str, Tensor]:
    student, data = FORMS["batch_ensemble"](), split(48, 5)
    fit(student, loss_of(student, "one_to_one", "ods"), data, data, plan, seeded(), checkpoint=checkpoint)
    return student.state_dict()


def test_what_was_chosen_at_first_use_is_in_the_checkpoint_and_a_resumed_training_goes_on_so(monkeypatch):
    monkeypatch.setattr(ways, "can_be_timed", lambda device: True)
    monkeypatch.setattr(ways, "fastest", lambda ways, x, parameters: list(ways)[-1])
    whole = Kept()
    expected = trained(whole)
    assert set(whole.states[0]["ways"].values()) == {"activations"}

    monkeypatch.setattr(ways, "fastest", lambda *_: pytest.fail("timed again"))
    resumed = trained(Kept(whole.states[1]))
    assert all(torch.equal(value, resumed[name]) for name, value in expected.items())


def test_a_deterministic_training_times_nothing(monkeypatch):
    monkeypatch.setattr(ways, "can_be_timed", lambda device: True)
    monkeypatch.setattr(ways, "fastest", lambda *_: pytest.fail("was timed"))
    kept = Kept()
    trained(kept, PLAN.replace(epochs=1, deterministic=True))
    assert set(kept.states[0]["ways"].values()) == {"weights"}
