"""Finds where members branch: which modules run before a module, recorded in a run of the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyphony._util.text import suggestion
from polyphony.nn.conversion import ConversionError
from polyphony.nn.counting import Counting
from polyphony.nn.probe import Size, on_random_images
from polyphony.nn.running import Front


@dataclass(frozen=True)
class Call:
    """A call of a module, the modules around it that are running, and the operations before it."""

    name: str
    callers: tuple[str, ...]
    flops: int


def find_front(network: nn.Module, branch: str, size: Size | None) -> Front:
    """The front before the module `branch`.

    Raises a ConversionError if the module does not run exactly once, or if nothing with weights runs before.
    """
    names = {module: name for name, module in network.named_modules()}
    if branch not in dict(network.named_modules(remove_duplicate=False)):
        near = suggestion(branch, filter(None, names.values()))
        raise ConversionError(f"the network has no layer '{branch}' for members to branch at: {near}")
    branch = names[network.get_submodule(branch)]
    calls = on_random_images(network, 1, size, record_calls)
    times = sum(call.name == branch for call in calls)
    if times != 1:
        raise ConversionError(f"members cannot branch at '{branch}', {reason(branch, times, calls)}")
    front = front_of(calls, branch)
    if not any(True for name in front.modules for _ in network.get_submodule(name).parameters()):
        raise ConversionError(
            f"nothing with weights runs before '{branch}': name a later layer, or leave out `branch`"
        )
    return front


def reason(branch: str, times: int, calls: Iterable[Call]) -> str:
    """Why a module that runs never or several times cannot be the branch."""
    if times:
        return f"which runs {times} times: name a layer that runs once"
    inner = next((call.name for call in calls if call.name.startswith(f"{branch}.")), None)
    return "which never runs" + (f": name one inside it, for example '{inner}'" if inner else "")


def front_of(calls: list[Call], branch: str) -> Front:
    """The front of a branch: all modules called before it, except the modules that contain its call."""
    names = [call.name for call in calls]
    callers = calls[names.index(branch)].callers
    before = dict.fromkeys(names[: names.index(branch)])
    return Front(branch, tuple(name for name in before if name not in callers))


def boundaries(network: nn.Module, x: Tensor, share: float) -> list[tuple[float, Front]]:
    """Fronts of modules that run once, with their distance from a share of the operations, nearest first.

    If nested modules begin with the same operation, only the outermost counts.
    """
    with Counting() as counting:
        calls = record_calls(network, x, lambda: counting.flops)
    total = max(1, counting.flops)
    times = Counter(call.name for call in calls)
    starts = {call.name: call.flops for call in calls if times[call.name] == 1 and call.flops}
    outermost = [
        call.name
        for call in calls
        if call.name in starts and call.flops not in [starts.get(name) for name in call.callers]
    ]
    distances = {name: abs(starts[name] / total - share) for name in outermost}
    return [(distances[name], front_of(calls, name)) for name in sorted(distances, key=distances.__getitem__)]


def record_calls(network: nn.Module, x: Tensor, flops: Callable[[], int] = lambda: 0) -> list[Call]:
    """Run the network on images, and return the calls of all modules in order."""
    calls: list[Call] = []
    running: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls.append(Call(name, tuple(running), flops()))
            running.append(name)

        return hook

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as stack, torch.no_grad(), torch.random.fork_rng(devices=[]):
        for name, module in network.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        network(x)
    return calls
