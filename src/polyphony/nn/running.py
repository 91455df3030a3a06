"""Runs networks with members: all at once, or one after the other; a shared front runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from polyphony.nn.rank_one import NO_TURN, member_layers, split_rows

SHARED = -1  # in place of a dimension: the tensor has no rows and is the same for all members


@dataclass(frozen=True)
class Front:
    """The part of a network that all members share: the `modules` that run before the module `branch`.

    `dims` has one entry for each input of the branch, nested inputs included: the dimension of its rows,
    `SHARED` for a tensor without rows, None for an input that is not a tensor.
    """

    branch: str
    modules: tuple[str, ...]
    dims: tuple[int | None, ...] = ()


class Members(nn.Module):
    """Runs M members: [(m b) …] → [(m b) …]. With `shared`, all see the same rows: [b …] → [(m b) …]."""

    def forward(self, x: Tensor, shared: bool = False) -> Tensor:
        raise NotImplementedError


class AtOnce(Members):
    """A converted network with a front: shared rows are repeated for each member before the branch."""

    def __init__(self, network: nn.Module, members: int, front: Front) -> None:
        super().__init__()
        self.network, self.front, self.repeat = network, front, Repeat(members, front.dims)
        network.get_submodule(front.branch).register_forward_pre_hook(self.repeat, with_kwargs=True)

    def forward(self, x: Tensor, shared: bool = False) -> Tensor:
        self.repeat.on = shared
        try:
            return self.network(x)  # type: ignore[no-any-return]
        finally:
            self.repeat.on = False


class Repeat:
    """A forward pre-hook of the branch that repeats the rows of its inputs for every member while `on`."""

    def __init__(self, members: int, dims: tuple[int | None, ...]) -> None:
        self.members, self.dims, self.on = members, dims, False

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self.on:
            return None
        inputs, structure = tree_flatten((args, kwargs))
        repeated = [self.repeated(value, dim) for value, dim in zip(inputs, self.dims, strict=True)]
        return tree_unflatten(repeated, structure)

    def repeated(self, value: Any, dim: int | None) -> Any:
        """[… b …] → [… (m b) …], in the same memory format: `expand` and `flatten` lose channels_last."""
        return value if dim in (None, SHARED) else torch.cat(self.members * [value], dim)


class InTurn(Members):
    """A converted network whose members run one after the other, each on its own rows.

    For networks that change the order of their rows, or that read weights without calling their layers.
    A front runs once for shared rows. For other rows it runs M times, like the rest.
    """

    def __init__(self, network: nn.Module, members: int, front: Front | None = None) -> None:
        super().__init__()
        self.network, self.members, self.front = network, members, front
        self.give_turn(NO_TURN)

    def give_turn(self, j: int) -> None:
        """From now on all rows belong to member j."""
        for layer in member_layers(self.network):
            layer.turn = j

    def turns(self) -> Iterator[nn.Module]:
        """The network as each member in turn."""
        for j in range(self.members):
            self.give_turn(j)
            yield self.network

    def forward(self, x: Tensor, shared: bool = False) -> Tensor:
        front_once = FrontOnce(self.front) if shared and self.front else None
        blocks = self.members * (x,) if shared else split_rows(x, self.members)
        try:
            return torch.cat(
                [
                    network(rows) if front_once is None else front_once.run(network, rows)
                    for network, rows in zip(self.turns(), blocks, strict=True)
                ]
            )
        finally:
            self.give_turn(NO_TURN)


class FrontOnce:
    """Runs networks with the same front: only the first runs it, the others reuse its results.

    They get copies of the results, since later modules may change a tensor in place.
    """

    def __init__(self, front: Front) -> None:
        self.front, self.is_first = front, True
        self.recorded: list[Any] = []  # results of the front's modules, then the inputs of the branch

    def run(self, network: nn.Module, x: Tensor) -> Tensor:
        """The network's outputs. Code between the front's modules runs every time."""
        self.replay = iter(self.recorded)
        self.reuses = True  # False inside a module of the front, and from the branch on
        with ExitStack() as stack:
            for name in self.front.modules:
                stack.enter_context(patched_forward(network.get_submodule(name), self.call_module))
            stack.enter_context(patched_forward(network.get_submodule(self.front.branch), self.call_branch))
            outputs: Tensor = network(x)
        self.is_first = False
        return outputs

    def call_module(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of a module of the front."""
        if not self.reuses:
            return forward(*args, **kwargs)
        self.reuses = False
        try:
            return self.once(lambda: forward(*args, **kwargs))
        finally:
            self.reuses = True

    def call_branch(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of the branch, with the inputs that it had in the first run."""
        args, kwargs = self.once(lambda: (args, kwargs))
        self.reuses = False  # from now on all modules run
        return forward(*args, **kwargs)

    def once(self, make: Callable[[], Any]) -> Any:
        """Call `make` in the first run; return copies of its result in the others."""
        if not self.is_first:
            return copied(next(self.replay))
        value = make()
        self.recorded.append(copied(value))
        return value


def copied(value: Any) -> Any:
    """A value with copies of all tensors in it."""
    return tree_map_only(Tensor, torch.clone, value)


@contextmanager
def patched_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's forward inside the `with` block; its first argument is the original forward."""
    instance_forward = module.__dict__.get("forward")  # set if somebody else has replaced the forward
    module.forward = partial(forward, module.forward)
    try:
        yield
    finally:
        if instance_forward is None:
            del module.forward
        else:
            module.forward = instance_forward
