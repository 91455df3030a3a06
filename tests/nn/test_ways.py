"""Scaling weights and scaling activations compute the same rank-one layer."""

from __future__ import annotations

import pytest
import torch
from test_rank_one import CONVOLUTIONS, DOUBLE, rows_of, with_members
from torch import Tensor, nn

import device  # noqa: F401 (the simulated one)
from cases import FORMS, seeded
from polyphony.compute.parallel import Group
from polyphony.nn.rank_one import RankOne, rank_ones, set_way
from polyphony.training.fit import Plan, Training

LAYERS = {name: lambda kind=kind: nn.Conv2d(4, 8, **kind) for name, kind in CONVOLUTIONS.items()} | {
    "linear": lambda: nn.Linear(4, 6),
    "linear, no bias": lambda: nn.Linear(4, 6, bias=False),
}


def passes(layer: RankOne, way: str, x: Tensor) -> list[Tensor]:
    """The outputs of a layer, and the gradients of a sum of them."""
    layer.way, rows = way, x.clone().requires_grad_()
    out = layer(rows)
    weights = torch.randn(out.shape, generator=seeded(5), dtype=DOUBLE).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((weights * out).sum(), [rows, *layer.parameters()])]


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_both_ways_are_the_same_function_with_the_same_gradients(make, dtype, allowed):
    layer = with_members(make(), 3).to(dtype)
    x = rows_of(3, 2, *((5, 4) if isinstance(layer.shared, nn.Linear) else (4, 7, 8))).to(dtype)
    ways = (passes(layer, way, x) for way in ("activations", "weights"))
    for actual, value in zip(*ways, strict=True):
        assert float((actual - value).abs().max()) <= allowed * max(1.0, float(value.abs().max()))


class Standardised(nn.Conv2d):
    """A layer that changes its weight before use."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class StandardisedInside(nn.Conv2d):
    """The same in `_conv_forward`."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


@pytest.mark.parametrize("kind", [Standardised, StandardisedInside])
def test_a_layer_with_a_forward_of_its_own_always_scales_weights(kind):
    layer, x = with_members(kind(4, 8, 3), 2), rows_of(2, 2, 4, 7, 8)
    set_way(layer, "activations")
    expected = torch.cat([layer.merge(j)(rows) for j, rows in enumerate(x.chunk(2))])
    torch.testing.assert_close(layer(x), expected)


def test_weights_are_scaled_on_the_cpu_and_activations_elsewhere(monkeypatch):
    calls, layer, x = [], with_members(nn.Conv2d(4, 8, 3), 2).float(), torch.rand(4, 4, 7, 8)
    for way in ("by_weights", "by_activations"):
        compute = getattr(RankOne, way)
        monkeypatch.setattr(RankOne, way, lambda layer, x, w=way, c=compute: calls.append(w) or c(layer, x))
    for there in ("cpu", "sim", "meta"):
        layer.to(there)(x.to(there))
    assert calls == ["by_weights", "by_activations", "by_weights"]


def test_a_plan_sets_the_way_and_a_checkpoint_says_nothing_of_it():
    student = FORMS["batch_ensemble"]()
    training = Training(student, Plan(way="activations"), seeded(), Group())
    assert {layer.way for layer in rank_ones(student)} == {"activations"}
    assert "ways" not in training.state()
    older = training.state() | {"ways": {"network.1": "grouped"}}
    training.restore(older)
