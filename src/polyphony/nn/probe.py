"""Runs a network on a few random images, to learn which sizes it accepts and what its layers receive."""

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
ROWS = (2, 8)  # of a member; 8 for networks that process a batch in chunks
# Relative to the largest number; the error of wrong rows is about as large as that number.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}


@dataclass(frozen=True)
class Trace:
    """A run of a network: its outputs, fingerprints of the inputs of watched layers, inputs of the branch."""

    outputs: Tensor
    calls: list[tuple[str, Tensor]]
    branch_inputs: list[object] = field(default_factory=list)


def run(
    network: nn.Module,
    x: Tensor,
    watched: Mapping[str, nn.Module],
    branch: nn.Module | None = None,
    shared: bool = False,
) -> Trace:
    """Run a network without gradients, and without changing the state of PyTorch's global generator.

    With `shared`, all members of the network see the same images.
    """
    calls: list[tuple[str, Tensor]] = []
    branch_inputs: list[object] = []

    def record_call(name: str, args: Any, kwargs: Any) -> None:
        calls.append((name, fingerprint(watched[name], args[0])))

    def record_branch(name: str, args: Any, kwargs: Any) -> None:
        branch_inputs.extend(copied(tree_leaves((args, kwargs))))

    with ExitStack() as stack, torch.no_grad(), torch.random.fork_rng(devices=[]):
        stack.enter_context(before_calls({} if branch is None else {"": branch}, record_branch))
        stack.enter_context(before_calls(watched, record_call))
        outputs = logits_of(network(x, shared=True) if shared else network(x))
    return Trace(outputs, calls, branch_inputs)


def inputs_of(network: nn.Module, x: Tensor, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The inputs of the layers that a run of the network calls, by name."""
    inputs: dict[str, Tensor] = {}
    with before_calls(layers, lambda name, args, kwargs: inputs.update({name: args[0]})):
        run(network, x, {})
    return inputs


@contextmanager
def before_calls(layers: Mapping[str, nn.Module], record: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Inside the `with` block, call `record` with the name and the arguments of each layer before it runs."""
    with ExitStack() as stack:
        for name, layer in layers.items():

            def hook(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                record(name, args, kwargs)

            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


@torch.no_grad()
def ignores_weight(layer: nn.Conv2d | nn.Linear, x: Tensor) -> bool:
    """Whether a layer gives the same outputs with another weight."""
    original, expected = layer.weight.clone(), layer(x)
    layer.weight.copy_(random_weight(original.shape, False, torch.Generator().manual_seed(1)))
    outputs = layer(x)
    layer.weight.copy_(original)
    return close(outputs, expected)


def fingerprint(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's input with a weighted sum in place of its channels: enough to tell rows apart."""
    channels_are_last = isinstance(layer, nn.Linear | RankOneLinear)
    x = x if channels_are_last or x.dim() < 2 else x.movedim(1, -1)
    return x @ torch.linspace(1, 2, x.shape[-1], dtype=x.dtype, device=x.device)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ only by rounding; on the meta device, whether they have the same shape."""
    if a.shape != b.shape or a.is_meta:
        return a.shape == b.shape
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = TOLERANCE.get(a.dtype, 1e-1)
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def stand_in(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode with random weights, since weights of zero would hide differences.

    Raises a ConversionError if the network cannot be copied.
    """
    try:
        network = copy.deepcopy(network)
    except Exception as error:  # for example, it holds a tensor that was computed with gradients
        raise ConversionError(f"the network cannot be copied ({first_line(error)})") from error
    network = network.to(dtype).train().eval()  # train() discards prepared weights
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
    """Remove the user's hooks, which may record calls, from a copy of a network."""
    for module in network.modules():
        module._forward_hooks.clear()
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if not isinstance(hook, Repeat)]:
            del hooks[key]
    return network


def random_weight(shape: torch.Size, is_factor: bool, rng: torch.Generator) -> Tensor:
    """Values that keep the scale of activations: around 0 for matrices; around 1 for vectors and factors."""
    if len(shape) < 2 or is_factor:
        return torch.empty(shape).uniform_(0.5, 1.5, generator=rng)
    return torch.empty(shape).normal_(std=1 / math.sqrt(math.prod(shape[1:])), generator=rng)


def images(rows: int, size: Size, network: nn.Module, dtype: torch.dtype) -> Tensor:
    """Random images on the network's device, the same at every call. [rows …]"""
    x = torch.rand(rows, *size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x.to(next(network.parameters(), x).device)


def on_images(
    network: nn.Module, members: int, size: Size | None, use: Callable[[nn.Module, Tensor], Result]
) -> Result:
    """Call `use` with a stand-in and random images for this many members, and return its result.

    Tries float64 (MPS has none) and then float32, few rows and then more, and by default all sizes that the
    network may accept, until a call succeeds. If none does, raises the first error in float32.
    """
    device = next(network.parameters(), torch.empty(0)).device
    for dtype in (each for each in TOLERANCE if device.type != "mps" or each != torch.float64):
        replica = stand_in(network, dtype)
        errors: list[Exception] = []  # the last dtype's are raised: float32, which networks normally use
        for rows, image_size in product(ROWS, sizes(network) if size is None else [size]):
            try:
                return use(replica, images(members * rows, image_size, replica, dtype))
            except Exception as error:  # the user's forward may raise anything
                errors.append(error)
    raise errors[0] if errors else ValueError("it has no layer that shows which images it takes")


def on_random_images(
    network: nn.Module, members: int, size: Size | None, use: Callable[[nn.Module, Tensor], Result]
) -> Result:
    """As `on_images`, but raises a ConversionError if no call succeeds."""
    try:
        return on_images(network, members, size, use)
    except ConversionError:
        raise
    except Exception as error:
        raise ConversionError(
            f"the network fails on random images: {error}; give their `size`: channels, height, width"
        ) from error


def sizes(network: nn.Module) -> Iterator[Size]:
    """Sizes of images that a network may accept: those it declares, then those that fit its first layer."""
    modules = list(network.modules())
    for module in modules:
        yield from declared_sizes(module)
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


def declared_sizes(module: nn.Module) -> Iterator[Size]:
    """Sizes of images that a module was adapted for, or that its configuration has (transformers, timm)."""
    if isinstance(module, Adapted) and module.shape:
        yield module.shape
    config = getattr(module, "config", None)
    side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if isinstance(side, int):
        yield (channels, side, side)
    elif isinstance(side, tuple | list):
        yield (channels, *side)
    timm_config = getattr(module, "pretrained_cfg", None)
    if isinstance(timm_config, Mapping) and "input_size" in timm_config:
        yield tuple(timm_config["input_size"])
