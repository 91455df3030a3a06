"""How a network with members runs: all at once, or one after the other; and how a shared front runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from polyphony.nn.rank_one import NOBODY, member_layers, split_rows

SHARED = -1  # in place of a dimension: the tensor has no rows, and is the same for all members


@dataclass(frozen=True)
class Front:
    """What all members share: the `modules` that run before the module `branch`, by name.

    `dims` has one entry for each input of the branch, nested inputs included: the dimension of its rows,
    `SHARED` for a tensor without rows, None for an input that is no tensor.
    """

    branch: str
    modules: tuple[str, ...]
    dims: tuple[int | None, ...] = ()


class Members(nn.Module):
    """Runs M members: [(m b) …] → [(m b) …]; with `shared` all see the same rows: [b …] → [(m b) …]."""

    def forward(self, x: Tensor, shared: bool = False) -> Tensor:
        raise NotImplementedError


class AtOnce(Members):
    """A converted network whose members share a front: shared rows are repeated where they branch."""

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
    """A hook before the branch that repeats the rows of its inputs for every member, while it is on."""

    def __init__(self, members: int, dims: tuple[int | None, ...]) -> None:
        self.members, self.dims, self.on = members, dims, False

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self.on:
            return None
        inputs, structure = tree_flatten((args, kwargs))
        repeated = [self.repeated(each, dim) for each, dim in zip(inputs, self.dims, strict=True)]
        return tree_unflatten(repeated, structure)

    def repeated(self, value: Any, dim: int | None) -> Any:
        """[… b …] → [… (m b) …], as it lies in memory: `expand` and `flatten` would lose channels_last."""
        return value if dim in (None, SHARED) else torch.cat(self.members * [value], dim)


class InTurn(Members):
    """A converted network whose members run one after the other, each on its own rows.

    For a network that does not keep its rows in their order, or reads weights without calling their layers.
    A front runs once for shared rows. For other rows it runs M times, as the rest does.
    """

    def __init__(self, network: nn.Module, members: int, front: Front | None = None) -> None:
        super().__init__()
        self.network, self.members, self.front = network, members, front
        self.give_turn(NOBODY)

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
        try:
            return run_each(self.turns(), x, self.members, shared, self.front)
        finally:
            self.give_turn(NOBODY)


def run_each(
    networks: Iterable[nn.Module], x: Tensor, members: int, shared: bool, front: Front | None
) -> Tensor:
    """Member j's network on its rows, or on shared rows, for which a front runs once. → [(m b) …]"""
    if not shared:
        rows = split_rows(x, members)
        return torch.cat([network(each) for network, each in zip(networks, rows, strict=True)])
    once = FrontOnce(front) if front else None
    return torch.cat([network(x) if once is None else once.run(network, x) for network in networks])


class FrontOnce:
    """Runs networks with the same front: the first runs it, the others get what it returned there.

    A copy of it, since what follows may change a tensor in place.
    """

    def __init__(self, front: Front) -> None:
        self.front, self.is_first = front, True
        self.recorded: list[Any] = []  # what modules of the front returned, then the inputs of the branch

    def run(self, network: nn.Module, x: Tensor) -> Tensor:
        """The network's outputs. Between modules of the front, its forward runs as always."""
        self.replay, self.outside = iter(self.recorded), True  # of the front's modules, and before the branch
        with ExitStack() as stack:
            for name in self.front.modules:
                stack.enter_context(forward_by(network.get_submodule(name), self.call))
            stack.enter_context(forward_by(network.get_submodule(self.front.branch), self.enter))
            outputs: Tensor = network(x)
        self.is_first = False
        return outputs

    def call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A module of the front."""
        if not self.outside:
            return forward(*args, **kwargs)
        self.outside = False
        try:
            return self.once(lambda: forward(*args, **kwargs))
        finally:
            self.outside = True

    def enter(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The branch."""
        args, kwargs = self.once(lambda: (args, kwargs))
        self.outside = False  # from now on all modules run
        return forward(*args, **kwargs)

    def once(self, make: Callable[[], Any]) -> Any:
        """What is made in the first run."""
        if not self.is_first:
            return copied(next(self.replay))
        value = make()
        self.recorded.append(copied(value))
        return value


def copied(value: Any) -> Any:
    """A value with copies of all tensors in it."""
    return tree_map_only(Tensor, torch.clone, value)


@contextmanager
def forward_by(module: nn.Module, how: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's forward by `how` for a while; `how` gets the original forward first."""
    before = module.__dict__.get("forward")
    module.forward = partial(how, module.forward)
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
