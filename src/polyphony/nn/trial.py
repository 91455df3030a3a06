"""Whether members of a network will be what they claim: tried with two, on random images and weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyphony.nn.conversion import (
    FACTOR_STD,
    LOST,
    SHARED,
    ConversionError,
    Order,
    convert,
    draw_factors,
    merge_member,
)
from polyphony.nn.probe import Size, Trace, close, on_images, run
from polyphony.nn.rank_one import InTurn

MEMBERS, ROWS = 2, 2  # of the trial: as few as can be told apart
TRIED = "tried_size"  # the attribute of a converted network that says at which size it was tried


def find_order(network: nn.Module, names: Sequence[str], size: Size | None) -> tuple[Order, Size | None]:
    """In which order rows reach the layers named, such that each member of the whole is what it is alone.

    Rows are followed where all members can run at once; otherwise members run in turn. A ConversionError says
    where members would differ, and what would help. With it comes the size of the images that were tried, if
    they had numbers.
    """
    try:
        trial = on_images(network, MEMBERS * ROWS, size, lambda plain, x: Trial(plain, x, names))
    except Exception as error:
        raise ConversionError(
            f"the network fails on random images: {error}; give their `size`: channels, height, width"
        ) from error
    order = trial.order()
    tried = None if trial.x.is_meta else tuple(trial.x.shape[1:])
    return order if trial.works(order) else trial.in_turn(order), tried


def check_members(network: nn.Module, members: int, size: Size) -> None:
    """Raise a ConversionError unless the first and last member of a network are what they are alone.

    A network without members of its own is refused where it mixes the rows of a batch.
    """
    if getattr(network, TRIED, None) == size:
        return

    def differs(whole: nn.Module, x: Tensor) -> int | None:
        rows, outputs = (t.unflatten(0, (members, -1)) for t in (x, run(whole, x, {}).outputs))
        alone = ((j, run(merge_member(whole, j), rows[j], {}).outputs) for j in (0, members - 1))
        return next((j for j, mine in alone if not close(outputs[j], mine)), None)

    j = on_images(network, members * ROWS, size, differs)
    if j is not None:
        raise ConversionError(
            f"on images of {size} member {j} is not what it is alone: convert the network for this size"
        )


class Trial:
    """A stand-in for a network, random images of two members [(m b) …], and the layers to have members."""

    def __init__(self, plain: nn.Module, x: Tensor, names: Sequence[str]) -> None:
        self.plain, self.names = plain, names
        self.x, self.rows = x, x.unflatten(0, (MEMBERS, ROWS))
        self.whole, self.last = self.run(plain, x), self.run(plain, self.rows[-1])

    def run(self, network: nn.Module, x: Tensor) -> Trace:
        """The stand-in, or what has become of it, on some images."""
        inner = network.network if isinstance(network, InTurn) else network
        return run(network, x, {name: inner.get_submodule(name) for name in self.names})

    def order(self) -> Order:
        """Where each layer finds the last member's rows among all rows."""
        if [name for name, _ in self.whole.calls] != [name for name, _ in self.last.calls]:
            return Order(dict.fromkeys(self.names, LOST))
        dims: dict[str, int] = {}
        for (name, everyone), (_, mine) in zip(self.whole.calls, self.last.calls, strict=True):
            dim = dim_of_members(everyone, mine)
            follows = dim <= 0 or isinstance(self.plain.get_submodule(name), nn.Linear)
            dims[name] = dim if follows and dims.get(name, dim) == dim else LOST
        return Order(dict.fromkeys(self.names, 0) | dims)

    def fault(self, order: Order) -> str | None:
        """How a network converted by this order differs from its members alone, if it does.

        The last member's factors are one: it must be the network as it was; the other its merged network.
        """
        rng = torch.Generator().manual_seed(0)

        def draw(layer: nn.Conv2d | nn.Linear) -> tuple[Tensor, Tensor]:
            r, s = draw_factors(layer, MEMBERS, FACTOR_STD, rng)
            r[-1], s[-1] = 1, 1
            return r, s

        converted = convert(copy.deepcopy(self.plain), MEMBERS, order, draw)
        try:
            whole = self.run(converted, self.x)
            runs = [self.run(merge_member(converted, 0), self.rows[0]), self.last]
            found = (difference(as_member(whole, j, order), alone) for j, alone in enumerate(runs))
            return next((name for name in found if name is not None), None)
        except Exception as error:  # whatever a stranger's forward trips over
            return f"with members it fails: {error}"

    def works(self, order: Order) -> bool:
        """Whether members of a network converted by this order are what they claim."""
        return not order.lost and self.fault(order) is None

    def in_turn(self, order: Order) -> Order:
        """Members one after the other, if they then are what they claim and no norm sees the rows of all."""
        turns = Order(dict.fromkeys(self.names, 0), in_turn=True)
        own = {self.plain.get_submodule(name) for name in self.names}
        norms = any(isinstance(module, _BatchNorm) for module in set(self.plain.modules()) - own)
        if norms or not self.works(turns):
            raise ConversionError(self.advice(order, self.works(turns)))
        return turns

    def advice(self, order: Order, turns_work: bool) -> str:
        """Where members would differ from what they are alone, and which of our options would help."""
        called = {name for name, _ in self.whole.calls}
        lost, unused = order.lost, [name for name in self.names if name not in called]
        rest = [name for name in self.names if name not in (lost or unused)]
        kept = Trial(self.plain, self.x, rest)
        reason, cures = self.fault(order), []
        if turns_work:
            cures.append("set `member_norm`, so that members can run one after the other")
        if (lost or unused) and rest and kept.works(kept.order()):
            cures.append(f"share layers by keep={tuple(lost or unused)}")
            reason = f"layer '{unused[0]}' is not called, its weight is read" if unused else reason
        if lost:
            reason = f"rows come to layer '{lost[0]}' in an order that cannot be followed"
        cure = ", or ".join(cures) or "it mixes the rows of a batch, or is random"
        return f"members of this network are not what they are alone: {reason}; {cure}"


def as_member(whole: Trace, j: int, order: Order) -> Trace:
    """What one member had in the run of all."""
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
