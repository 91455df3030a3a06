"""Tests whether each member computes what it computes alone: two members, random images and weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyphony.nn.branch import boundaries
from polyphony.nn.conversion import (
    FACTOR_STD,
    LOST,
    ConversionError,
    Order,
    convert,
    draw_factors,
    inside,
    merge_member,
    of_members,
)
from polyphony.nn.probe import (
    Size,
    Trace,
    close,
    ignores_weight,
    images,
    inputs_of,
    on_images,
    on_random_images,
    run,
)
from polyphony.nn.rank_one import is_plain
from polyphony.nn.running import SHARED, Front, Members

MEMBERS = 2  # of the trial: as few as can be told apart
MORE = 5  # rows of each in a second, larger batch
NEAR = 0.25  # how far a branch that is chosen by a share may be from it
# Attributes of a converted network: at which size it was tried, and with which result.
TRIED, ORDER = "tried_size", "tried_order"
PROVEN = "proven"  # of a plain network: both, of an earlier trial, so that nothing is tried again


def find_order(
    network: nn.Module,
    names: Sequence[str],
    size: Size | None,
    front: Front | None = None,
    options: Sequence[str] = ("keep", "member_norm"),
) -> tuple[Order, Size | None]:
    """The order in which rows reach these layers, tested: each member computes what it computes alone.

    All members run at once if their rows can be followed, otherwise in turn. Raises a ConversionError that
    says where members would differ, and which of the `options` would help. Also returns the size of the
    images that were tried, or None on the meta device.
    """
    trial = on_random_images(network, MEMBERS, size, lambda plain, x: Trial(plain, x, names, front))
    order = trial.order()
    tried = None if trial.x.is_meta else tuple(trial.x.shape[1:])
    if stale := trial.stale():
        raise ConversionError(
            f"layer '{stale[0]}' goes on using a weight that it has prepared, where each member has another:"
            f" {leave_out(stale, options)}"
        )
    if not trial.works_at_once(order):
        if not trial.turns_work():
            raise ConversionError(trial.advice(order, options))
        order = trial.turns()
    return order, tried


def front_at(
    network: nn.Module, share: float, layers: Callable[[Front], list[str]], size: Size | None
) -> Front:
    """The front nearest to a share of the network's operations with which members can run at once.

    If there is none near it, members run in turn. `layers` gives the layers that have members behind a front,
    or raises a ConversionError.
    """

    def works(plain: nn.Module, x: Tensor, front: Front, in_turn: bool) -> bool:
        try:
            trial = Trial(plain, x, layers(front), front)
        except ConversionError:
            return False
        return trial.turns_work() if in_turn else trial.works_at_once(trial.order())

    def nearest(plain: nn.Module, x: Tensor) -> Front | None:
        fronts = [front for apart, front in boundaries(plain, x, share) if apart < NEAR]
        tries = product((False, True), fronts)
        return next((front for in_turn, front in tries if works(plain, x, front, in_turn)), None)

    front = on_random_images(network, MEMBERS, size, nearest)
    if front is None:
        raise ConversionError(
            f"members cannot branch near {share:.0%} of this network's operations: name a layer in `branch`"
        )
    return front


def check_members(network: nn.Module, members: int, size: Size) -> None:
    """Raise a ConversionError unless the first and last member compute what they compute alone.

    A network without members is rejected if it mixes the rows of a batch.
    """
    if getattr(network, TRIED, None) == size:
        return

    def differs(whole: nn.Module, x: Tensor) -> int | None:
        alone = {j: merge_member(whole, j) for j in (0, members - 1)}
        for rows, shared in given(whole, x.unflatten(0, (members, -1))):
            outputs = ask(whole, rows, {}, shared).outputs.unflatten(0, (members, -1))
            for j, network in alone.items():
                if not close(outputs[j], run(network, rows[j], {}).outputs):
                    return j
        return None

    j = on_images(network, members, size, differs)
    if j is not None:
        raise ConversionError(
            f"on images of {size} member {j} is not what it is alone: convert the network for this size"
        )


def given(network: nn.Module, rows: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """Each member's rows [m b …], and whether they are shared: its own, then the last one's where it may."""
    yield rows, False
    if isinstance(network, Members):
        yield rows[-1].expand_as(rows), True


def ask(network: nn.Module, rows: Tensor, watched: Mapping[str, nn.Module], shared: bool) -> Trace:
    """A network with members on the rows of each. [m b …] → [(m b) …]"""
    return run(network, rows[0] if shared else rows.flatten(0, 1), watched, shared=shared)


class Trial:
    """A stand-in for a network, random images of two members [(m b) …], and the layers to have members."""

    def __init__(self, plain: nn.Module, x: Tensor, names: Sequence[str], front: Front | None = None) -> None:
        self.unused = copy.deepcopy(plain)  # it may prepare weights in its first run, and keep them
        self.plain, self.names, self.front = plain, names, front
        self.x, self.rows = x, x.unflatten(0, (MEMBERS, -1))
        branch = plain.get_submodule(front.branch) if front else None
        self.whole, self.last = (run(plain, rows, self.watched(plain), branch) for rows in (x, self.rows[-1]))

    def watched(self, network: nn.Module) -> dict[str, nn.Module]:
        """The layers to have members, in the stand-in or in what has become of it."""
        return {name: inside(network).get_submodule(name) for name in self.names}

    def order(self) -> Order:
        """Where each layer finds the last member's rows among all rows."""
        if [name for name, _ in self.whole.calls] != [name for name, _ in self.last.calls]:
            return Order(dict.fromkeys(self.names, LOST), front=self.front)
        dims: dict[str, int] = {}
        for (name, everyone), (_, mine) in zip(self.whole.calls, self.last.calls, strict=True):
            dim = dim_of_members(everyone, mine)
            follows = dim <= 0 or isinstance(self.plain.get_submodule(name), nn.Linear)
            dims[name] = dim if follows and dims.get(name, dim) == dim else LOST
        return Order(dict.fromkeys(self.names, 0) | dims, front=self.front and self.followed(self.front))

    def followed(self, front: Front) -> Front:
        """The front with the dimensions in which its branch finds rows."""
        inputs = zip(self.whole.branched, self.last.branched, strict=True)
        dims = [
            dim_of_members(everyone, mine)
            if isinstance(everyone, Tensor) and isinstance(mine, Tensor)
            else None
            for everyone, mine in inputs
        ]
        return replace(front, dims=tuple(dims))

    def fault(self, order: Order) -> str | None:
        """How a network converted by this order differs from its members alone, if it does.

        The last member's factors are one: it must be the network as it was; the other its merged network.
        """
        rng = torch.Generator().manual_seed(0)

        def draw(layer: nn.Conv2d | nn.Linear) -> tuple[Tensor, Tensor]:
            r, s = draw_factors(layer, MEMBERS, FACTOR_STD, rng)
            r[-1], s[-1] = 1, 1
            return r, s

        make = partial(of_members, members=MEMBERS, draw=draw)
        converted = convert(copy.deepcopy(self.unused), MEMBERS, order, make)
        first = merge_member(converted, 0)

        def differs(rows: Tensor, shared: bool) -> str | None:
            try:
                whole = ask(converted, rows, self.watched(converted), shared)
                runs = [run(first, rows[0], self.watched(first)), self.last]
                found = (difference(as_member(whole, j, order), alone) for j, alone in enumerate(runs))
                return next((fault for fault in found if fault is not None), None)
            except Exception as error:  # whatever a stranger's forward trips over
                return f"with members it fails: {error}"

        found = ((differs(*each), each[1]) for each in given(converted, self.rows))
        fault, shared = next((each for each in found if each[0] is not None), (None, False))
        if fault and shared and order.front and not order.in_turn:
            return f"what is computed before '{order.front.branch}' is used after it, too"
        return fault

    def works(self, order: Order) -> bool:
        """Whether members of a network converted by this order compute what they compute alone."""
        return not order.lost and self.fault(order) is None

    def works_at_once(self, order: Order) -> bool:
        """Whether rows of a larger batch also come in this order, and none depends on another."""
        if not self.works(order):
            return False
        x = images(MEMBERS * MORE, tuple(self.x.shape[1:]), self.plain, self.x.dtype)
        try:
            more = Trial(self.plain, x, self.names, self.front)
        except Exception:  # it does not take as many images
            return True
        return more.order() == order and close(of_member(more.whole.outputs, 0, -1), more.last.outputs)

    def stale(self) -> list[str]:
        """Layers with a forward of their own whose outputs ignore a change of their weight."""
        own = {
            name: layer
            for name, layer in self.watched(self.plain).items()
            if isinstance(layer, nn.Conv2d | nn.Linear) and not is_plain(layer)
        }
        if self.x.is_meta or not own:
            return []
        inputs = inputs_of(self.plain, self.rows[-1], own)
        return [name for name in inputs if ignores_weight(own[name], inputs[name])]

    def turns(self) -> Order:
        """Members one after the other."""
        return Order(dict.fromkeys(self.names, 0), in_turn=True, front=self.front)

    def turns_work(self) -> bool:
        """Whether members can run in turn, and no norm needs the rows of all members."""
        front = self.front.modules if self.front else ()
        others = {self.plain.get_submodule(name) for name in (*self.names, *front)}
        norms = any(isinstance(module, _BatchNorm) for module in set(self.plain.modules()) - others)
        return not norms and self.works(self.turns())

    def advice(self, order: Order, options: Sequence[str]) -> str:
        """Where members would differ from what they are alone, and which of the options would help."""
        called = {name for name, _ in self.whole.calls}
        lost, unused = order.lost, [name for name in self.names if name not in called]
        rest = [name for name in self.names if name not in (lost or unused)]
        kept = Trial(self.plain, self.x, rest, self.front)
        reason = self.fault(order) or "rows of a larger batch depend on each other"
        cures = []
        if "member_norm" in options and self.works(self.turns()):
            cures.append("set `member_norm`, so that members can run one after the other")
        if (lost or unused) and rest and kept.works_at_once(kept.order()):
            cures.append(leave_out(lost or unused, options))
            reason = f"layer '{unused[0]}' is not called, its weight is read" if unused else reason
        if lost:
            reason = f"rows come to layer '{lost[0]}' in an order that cannot be followed"
        if self.front:
            cures.append(f"branch elsewhere than at '{self.front.branch}'")
        cure = ", or ".join(cures) or "it mixes the rows of a batch, or is random"
        return f"members of this network are not what they are alone: {reason}; {cure}"


def leave_out(names: Sequence[str], options: Sequence[str]) -> str:
    """What to do about layers that cannot have members."""
    return (
        f"share layers by keep={tuple(names)}"
        if "keep" in options
        else f"name layers other than {tuple(names)}"
    )


def as_member(whole: Trace, j: int, order: Order) -> Trace:
    """One member's part of the run of all."""
    outputs = whole.outputs.unflatten(0, (MEMBERS, -1))[j]
    if order.in_turn:
        each = len(whole.calls) // MEMBERS
        return Trace(outputs, whole.calls[j * each : (j + 1) * each])
    calls = [(name, of_member(everyone, order.dims[name], j)) for name, everyone in whole.calls]
    return Trace(outputs, calls)


def difference(mine: Trace, alone: Trace) -> str | None:
    """At which layer two runs first differ, or that they do in the end, if so."""
    for (name, a), (other, b) in zip(mine.calls, alone.calls, strict=False):
        if name != other or not close(a, b):
            return f"they differ at layer '{other}'"
    same = len(mine.calls) == len(alone.calls) and close(mine.outputs, alone.outputs)
    return None if same else "they differ in what comes out"


def dim_of_members(everyone: Tensor, last: Tensor) -> int:
    """The dimension in which members come first and these are the last one's rows; `SHARED`; or `LOST`."""
    if close(everyone, last):
        return SHARED
    for dim in range(last.dim()):
        doubled = everyone.dim() == last.dim() and everyone.shape[dim] == MEMBERS * last.shape[dim]
        if doubled and close(of_member(everyone, dim, -1), last):
            return dim
    return LOST


def of_member(everyone: Tensor, dim: int, j: int) -> Tensor:
    """The rows of member j, which are all rows of a shared layer."""
    return everyone if dim == SHARED else everyone.unflatten(dim, (MEMBERS, -1)).select(dim, j)
