"""Runs a network on a few random images: which sizes it accepts, and what reaches its layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from polyphony._util.text import first_line
from polyphony.nn.adapter import Adapted, logits_of
from polyphony.nn.conversion import ConversionError
from polyphony.nn.rank_one import RankOne, RankOneLinear
from polyphony.nn.running import Repeat, copied

Size = tuple[int, ...]  # of one image: channels, height, width
Result = TypeVar("Result")

SIDES = (8, 16, 32, *range(4, 65), 96, 112, 128, 160, 192, 224, 256, 288, 299, 320, 336, 384, 448, 512)
ROWS = (2, 8)  # of a member: as few as can be told apart, and those of a network that works in chunks
# Of the largest number; wrong rows are off by its size.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}


@dataclass(frozen=True)
class Trace:
    """A network's outputs, fingerprints of the inputs of watched layers as they ran, inputs of a branch."""

    outputs: Tensor
    calls: list[tuple[str, Tensor]]
    branched: list[object] = field(default_factory=list)


def run(
    network: nn.Module,
    x: Tensor,
    watched: Mapping[str, nn.Module],
    branch: nn.Module | None = None,
    shared: bool = False,
) -> Trace:
    """A network on a few images, without gradients and without a draw from PyTorch's own generator.

    `shared` images are those of all members, of a network that can share them.
    """
    calls: list[tuple[str, Tensor]] = []
    branched: list[object] = []

    def note_call(name: str, args: Any, kwargs: Any) -> None:
        calls.append((name, fingerprint(watched[name], args[0])))

    def note_branch(name: str, args: Any, kwargs: Any) -> None:
        branched.extend(copied(tree_leaves((args, kwargs))))

    with ExitStack() as stack, torch.no_grad(), torch.random.fork_rng(devices=[]):
        stack.enter_context(noting({} if branch is None else {"": branch}, note_branch))
        stack.enter_context(noting(watched, note_call))
        outputs = logits_of(network(x, shared=True) if shared else network(x))
    return Trace(outputs, calls, branched)


def inputs_of(network: nn.Module, x: Tensor, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The inputs of layers in a run of a network, of those that are called."""
    inputs: dict[str, Tensor] = {}
    with noting(layers, lambda name, args, kwargs: inputs.update({name: args[0]})):
        run(network, x, {})
    return inputs


@contextmanager
def noting(layers: Mapping[str, nn.Module], note: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Meanwhile `note` is called with the name and the arguments of each layer that is about to run."""
    with ExitStack() as stack:
        for name, layer in layers.items():

            def hook(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                note(name, args, kwargs)

            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


@torch.no_grad()
def ignores_weight(layer: nn.Conv2d | nn.Linear, x: Tensor) -> bool:
    """Whether a layer's outputs are the same with another weight."""
    kept, expected = layer.weight.clone(), layer(x)
    layer.weight.copy_(random_weight(kept.shape, False, torch.Generator().manual_seed(1)))
    found = layer(x)
    layer.weight.copy_(kept)
    return close(found, expected)


def fingerprint(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's input with the channels reduced to one number, by which rows are told apart."""
    last = isinstance(layer, nn.Linear | RankOneLinear)
    x = x if last or x.dim() < 2 else x.movedim(1, -1)
    return x @ torch.linspace(1, 2, x.shape[-1], dtype=x.dtype, device=x.device)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by rounding alone; on the meta device, whether they have the same shape."""
    if a.shape != b.shape or a.is_meta:
        return a.shape == b.shape
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = TOLERANCE.get(a.dtype, 1e-1)
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def stand_in(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode with random weights: zeros would hide what other layers compute."""
    try:
        network = copy.deepcopy(network)
    except Exception as error:  # a tensor that was computed with gradients, or whatever else it keeps
        raise ConversionError(f"the network cannot be copied ({first_line(error)})") from error
    network = network.to(dtype).train().eval()  # through train: to forget prepared weights
    network = without_hooks(network.requires_grad_(False))
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    rng = torch.Generator().manual_seed(0)
    for module in network.modules():
        for name, value in module.named_parameters(recurse=False):
            is_factor = isinstance(module, RankOne) and name in ("r", "s")
            if value.is_floating_point() and value.numel():
                value.copy_(random_weight(value.shape, is_factor, rng))
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
    return network


def without_hooks(network: nn.Module) -> nn.Module:
    """Remove the user's hooks from a copy: they may record calls."""
    for module in network.modules():
        module._forward_hooks.clear()
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if not isinstance(hook, Repeat)]:
            del hooks[key]
    return network


def random_weight(shape: torch.Size, is_factor: bool, rng: torch.Generator) -> Tensor:
    """Values that keep the scale of activations: matrices around 0; vectors, scalars and factors around 1."""
    if len(shape) < 2 or is_factor:
        return torch.empty(shape).uniform_(0.5, 1.5, generator=rng)
    return torch.empty(shape).normal_(std=1 / math.sqrt(math.prod(shape[1:])), generator=rng)


def images(rows: int, size: Size, network: nn.Module, dtype: torch.dtype) -> Tensor:
    """Distinct random images where a network's weights are, the same every time. [rows …]"""
    drawn = torch.rand(rows, *size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return drawn.to(next(network.parameters(), drawn).device)


def on_images(
    network: nn.Module, members: int, size: Size | None, use: Callable[[nn.Module, Tensor], Result]
) -> Result:
    """What `use` returns for a stand-in and random images for this many members.

    Few rows are tried first, then more; in the given size, or in the first that the network accepts.
    """
    for dtype in TOLERANCE:
        double = stand_in(network, dtype)
        errors: list[Exception] = []  # of the last precision, float32, in which networks are used
        for rows, chosen in product(ROWS, sizes(network) if size is None else [size]):
            try:
                return use(double, images(members * rows, chosen, double, dtype))
            except Exception as error:  # whatever a stranger's forward trips over
                errors.append(error)
    raise errors[0] if errors else ValueError("nothing in it tells which images it takes")


def on_random_images(
    network: nn.Module, members: int, size: Size | None, use: Callable[[nn.Module, Tensor], Result]
) -> Result:
    """As `on_images`; raises a ConversionError if the network runs on none."""
    try:
        return on_images(network, members, size, use)
    except ConversionError:
        raise
    except Exception as error:
        raise ConversionError(
            f"the network fails on random images: {error}; give their `size`: channels, height, width"
        ) from error


def sizes(network: nn.Module) -> Iterator[Size]:
    """Sizes of images that a network may take: those it declares, then those its first layer could take."""
    modules = list(network.modules())
    for module in modules:
        yield from declared(module)
    first = next((m for m in modules if isinstance(m, nn.Conv2d | nn.Linear | _BatchNorm)), None)
    if isinstance(first, nn.Conv2d):
        yield from ((first.in_channels, side, side) for side in SIDES)
    elif isinstance(first, _BatchNorm):
        yield from ((first.num_features, side, side) for side in SIDES)
    elif first is not None:
        yield (first.in_features,)
        yield from (
            (channels, side, side)
            for side in SIDES
            for channels in (1, 3)
            if channels * side**2 == first.in_features
        )


def declared(module: nn.Module) -> Iterator[Size]:
    """The size of images that a module was adapted for, or has in its configuration (transformers, timm)."""
    if isinstance(module, Adapted) and module.shape:
        yield module.shape
    config = getattr(module, "config", None)
    side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if isinstance(side, int):
        yield (channels, side, side)
    elif isinstance(side, tuple | list):
        yield (channels, *side)
    given = getattr(module, "pretrained_cfg", None)
    if isinstance(given, Mapping) and "input_size" in given:
        yield tuple(given["input_size"])
