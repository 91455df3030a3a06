"""Which way rank-one layers take: all are exact, and which is the fastest depends on device and layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from polyphony.compute.devices import can_be_timed, wait_for
from polyphony.nn.rank_one import RankOne, Way

AUTO = "auto"  # the default on a CPU, elsewhere the fastest, timed with the first rows a layer gets
REPEATS = 3  # of which the shortest counts


def set_way(model: nn.Module, way: str, device: torch.device) -> None:
    """Let every rank-one layer go one way, by its name, where it has it; or each find its own."""
    for layer in rank_ones(model).values():
        if way == AUTO and can_be_timed(device):
            layer.choose = fastest
        elif way in layer.ways():
            layer.way = way


def ways_of(model: nn.Module) -> dict[str, str]:
    """Which way each rank-one layer goes that has made its choice, by the layer's name."""
    return {name: layer.way for name, layer in rank_ones(model).items() if layer.choose is None}


def restore_ways(model: nn.Module, ways: Mapping[str, str]) -> None:
    """Let layers go the ways that they went when these were asked for."""
    layers = rank_ones(model)
    for name, way in ways.items():
        layers[name].way, layers[name].choose = way, None


def rank_ones(model: nn.Module) -> dict[str, RankOne]:
    """A model's rank-one layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, RankOne)}


def fastest(
    ways: Mapping[str, Way],
    x: Tensor,
    parameters: Sequence[Tensor],
    clock: Callable[[], float] = time.perf_counter,
) -> str:
    """The name of the way whose forward and backward pass takes the least time for these rows."""

    def seconds(way: Way) -> float:
        rows = x.detach().requires_grad_()
        wait_for(x.device)
        start = clock()
        torch.autograd.grad(way(rows).sum(), (rows, *parameters))
        wait_for(x.device)
        return clock() - start

    for way in ways.values():  # kernels are loaded and looked for in the first pass
        seconds(way)
    return min(ways, key=lambda name: min(seconds(ways[name]) for _ in range(REPEATS)))
