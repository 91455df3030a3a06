"""Where members branch: what runs before a module, found by a run of the network."""

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
    """A module's call: its name, the names of the modules that are running, and operations until then."""

    name: str
    within: tuple[str, ...]
    flops: int


def find_front(network: nn.Module, branch: str, size: Size | None) -> Front:
    """What runs before the module `branch`. A ConversionError where nothing does, or it does not run once."""
    names = {module: name for name, module in network.named_modules()}
    if branch not in dict(network.named_modules(remove_duplicate=False)):
        near = suggestion(branch, filter(None, names.values()))
        raise ConversionError(f"the network has no layer '{branch}' for members to branch at: {near}")
    branch = names[network.get_submodule(branch)]
    calls = on_random_images(network, 1, size, called)
    times = sum(call.name == branch for call in calls)
    if times != 1:
        raise ConversionError(f"members cannot branch at '{branch}', {why_not(branch, times, calls)}")
    front = front_of(calls, branch)
    if not any(True for name in front.modules for _ in network.get_submodule(name).parameters()):
        raise ConversionError(
            f"nothing with weights runs before '{branch}': name a later layer, or leave out `branch`"
        )
    return front


def why_not(branch: str, times: int, calls: Iterable[Call]) -> str:
    """Why a module that runs so many times for an image cannot be the branch."""
    if times:
        return f"which runs {times} times: name a layer that runs once"
    below = next((call.name for call in calls if call.name.startswith(f"{branch}.")), None)
    return "which never runs" + (f": name one inside it, for example '{below}'" if below else "")


def front_of(calls: list[Call], branch: str) -> Front:
    """All modules called before a branch but those that it is called by."""
    names = [call.name for call in calls]
    within = calls[names.index(branch)].within
    before = dict.fromkeys(names[: names.index(branch)])
    return Front(branch, tuple(name for name in before if name not in within))


def boundaries(network: nn.Module, x: Tensor, share: float) -> list[tuple[float, Front]]:
    """Fronts before modules that run once, and how far each is from a share of the operations, nearest first.

    Of modules that begin with the same operation, one inside the other, there is only the outermost.
    """
    with Counting() as counting:
        calls = called(network, x, lambda: counting.flops)
    total = max(1, counting.flops)
    times = Counter(call.name for call in calls)
    begin = {call.name: call.flops for call in calls if times[call.name] == 1 and call.flops}
    outermost = [
        call.name
        for call in calls
        if call.name in begin and call.flops not in [begin.get(name) for name in call.within]
    ]
    apart = {name: abs(begin[name] / total - share) for name in outermost}
    return [(apart[name], front_of(calls, name)) for name in sorted(apart, key=apart.__getitem__)]


def called(network: nn.Module, x: Tensor, flops: Callable[[], int] = lambda: 0) -> list[Call]:
    """The calls of all modules in order, for some images."""
    calls: list[Call] = []
    running: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            calls.append(Call(name, tuple(running), flops()))
            running.append(name)

        return note

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as stack, torch.no_grad(), torch.random.fork_rng(devices=[]):
        for name, module in network.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        network(x)
    return calls
