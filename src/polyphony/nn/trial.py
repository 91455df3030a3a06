"""Tests a conversion with two members on random images: each must compute what it computes alone."""

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
    make_member_layer,
    merge_member,
    unwrap,
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

MEMBERS = 2  # in a trial: the fewest between which rows can be mixed up
MORE_ROWS = 5  # of each member in a second, larger batch
NEAR = 0.25  # a branch may be this far from the requested share of the operations
# Attributes of a converted network: the size of the images of its trial, and the order that the trial found.
TRIED, ORDER = "tried_size", "tried_order"
PROVEN = "proven"  # attribute of a plain network: order and size of an earlier trial, which replace a new one


def find_order(
    network: nn.Module,
    names: Sequence[str],
    size: Size | None,
    front: Front | None = None,
    options: Sequence[str] = ("keep", "member_norm"),
) -> tuple[Order, Size | None]:
    """The order in which rows reach these layers, and the size of the trial's images (None on meta).

    A trial has shown that each member computes what it computes alone. All members run at once if their rows
    can be followed, otherwise in turn. Raises a ConversionError that says where members would differ, and
    which of the `options` would help.
    """
    trial = on_random_images(network, MEMBERS, size, lambda plain, x: Trial(plain, x, names, front))
    order = trial.order()
    tried = None if trial.x.is_meta else tuple(trial.x.shape[1:])
    if stale := trial.stale():
        raise ConversionError(
            f"layer '{stale[0]}' keeps using a weight that it prepared, but each member has another weight:"
            f" {leave_out(stale, options)}"
        )
    if not trial.works_at_once(order):
        if not trial.works_in_turn():
            raise ConversionError(trial.advice(order, options))
        order = trial.in_turn_order()
    return order, tried


def front_at(
    network: nn.Module, share: float, layers: Callable[[Front], list[str]], size: Size | None
) -> Front:
    """The front nearest to a share of the network's operations with which members can run at once.

    If there is none near the share, the nearest one with which members can run in turn. `layers` returns the
    layers behind a front that get members, or raises a ConversionError. Raises one if no front works.
    """

    def works(plain: nn.Module, x: Tensor, front: Front, in_turn: bool) -> bool:
        try:
            trial = Trial(plain, x, layers(front), front)
        except ConversionError:
            return False
        return trial.works_in_turn() if in_turn else trial.works_at_once(trial.order())

    def nearest(plain: nn.Module, x: Tensor) -> Front | None:
        fronts = [front for distance, front in boundaries(plain, x, share) if distance < NEAR]
        attempts = product((False, True), fronts)
        return next((front for in_turn, front in attempts if works(plain, x, front, in_turn)), None)

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

    def wrong_member(converted: nn.Module, x: Tensor) -> int | None:
        alone = {j: merge_member(converted, j) for j in (0, members - 1)}
        for rows, shared in member_inputs(converted, x.unflatten(0, (members, -1))):
            outputs = run_members(converted, rows, {}, shared).outputs.unflatten(0, (members, -1))
            for j, network in alone.items():
                if not close(outputs[j], run(network, rows[j], {}).outputs):
                    return j
        return None

    j = on_images(network, members, size, wrong_member)
    if j is not None:
        raise ConversionError(
            f"on images of {size} member {j} does not compute what it computes alone: convert for this size"
        )


def member_inputs(network: nn.Module, rows: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """The inputs to test, [m b …], and whether all members share them.

    First different rows for each member; then, if the network can share rows, the last member's for all.
    """
    yield rows, False
    if isinstance(network, Members):
        yield rows[-1].expand_as(rows), True


def run_members(network: nn.Module, rows: Tensor, watched: Mapping[str, nn.Module], shared: bool) -> Trace:
    """Run a network with members, each on its rows. [m b …] → [(m b) …]"""
    return run(network, rows[0] if shared else rows.flatten(0, 1), watched, shared=shared)


class Trial:
    """A stand-in for a network, random images of two members [(m b) …], and the layers that get members."""

    def __init__(self, plain: nn.Module, x: Tensor, names: Sequence[str], front: Front | None = None) -> None:
        self.unused = copy.deepcopy(plain)  # a network may prepare weights in its first run, and keep them
        self.plain, self.names, self.front = plain, names, front
        self.x, self.rows = x, x.unflatten(0, (MEMBERS, -1))
        branch = plain.get_submodule(front.branch) if front else None
        # Runs of the plain network: on the rows of all members, and on those of the last member alone.
        self.all, self.last = (run(plain, rows, self.watched(plain), branch) for rows in (x, self.rows[-1]))

    def watched(self, network: nn.Module) -> dict[str, nn.Module]:
        """The layers that get members, in the stand-in or in a network converted from it."""
        return {name: unwrap(network).get_submodule(name) for name in self.names}

    def order(self) -> Order:
        """The dimension in which the last member's rows are found among all rows, for each layer."""
        if [name for name, _ in self.all.calls] != [name for name, _ in self.last.calls]:
            return Order(dict.fromkeys(self.names, LOST), front=self.front)
        dims: dict[str, int] = {}
        for (name, all_rows), (_, last_rows) in zip(self.all.calls, self.last.calls, strict=True):
            dim = dim_of_members(all_rows, last_rows)
            is_usable = dim <= 0 or isinstance(self.plain.get_submodule(name), nn.Linear)
            dims[name] = dim if is_usable and dims.get(name, dim) == dim else LOST
        return Order(dict.fromkeys(self.names, 0) | dims, front=self.front and self.with_dims(self.front))

    def with_dims(self, front: Front) -> Front:
        """The front with the dimension of the rows in each input of its branch."""
        inputs = zip(self.all.branch_inputs, self.last.branch_inputs, strict=True)
        dims = [
            dim_of_members(all_rows, last_rows)
            if isinstance(all_rows, Tensor) and isinstance(last_rows, Tensor)
            else None
            for all_rows, last_rows in inputs
        ]
        return replace(front, dims=tuple(dims))

    def fault(self, order: Order) -> str | None:
        """How a network converted by this order differs from its members alone; None if it does not.

        The last member's factors are one, so it must compute what the plain network computes. The first
        member must compute what its merged network computes.
        """
        rng = torch.Generator().manual_seed(0)

        def draw(layer: nn.Conv2d | nn.Linear) -> tuple[Tensor, Tensor]:
            r, s = draw_factors(layer, MEMBERS, FACTOR_STD, rng)
            r[-1], s[-1] = 1, 1
            return r, s

        make = partial(make_member_layer, members=MEMBERS, draw=draw)
        converted = convert(copy.deepcopy(self.unused), MEMBERS, order, make)
        first = merge_member(converted, 0)

        def fault_on(rows: Tensor, shared: bool) -> str | None:
            try:
                trace = run_members(converted, rows, self.watched(converted), shared)
                alone = [run(first, rows[0], self.watched(first)), self.last]
                parts = (member_trace(trace, j, order) for j in range(MEMBERS))
                faults = (difference(mine, other) for mine, other in zip(parts, alone, strict=True))
                return next((fault for fault in faults if fault is not None), None)
            except Exception as error:  # the user's forward may raise anything
                return f"with members it fails: {error}"

        for rows, shared in member_inputs(converted, self.rows):
            fault = fault_on(rows, shared)
            if fault and shared and order.front and not order.in_turn:
                return f"what is computed before '{order.front.branch}' is used after it, too"
            if fault:
                return fault
        return None

    def works(self, order: Order) -> bool:
        """Whether members of a network converted by this order compute what they compute alone."""
        return not order.lost and self.fault(order) is None

    def works_at_once(self, order: Order) -> bool:
        """Whether the order works, holds for a larger batch too, and rows do not depend on each other."""
        if not self.works(order):
            return False
        x = images(MEMBERS * MORE_ROWS, tuple(self.x.shape[1:]), self.plain, self.x.dtype)
        try:
            larger = Trial(self.plain, x, self.names, self.front)
        except Exception:  # the network does not accept so many images
            return True
        return larger.order() == order and close(member_part(larger.all.outputs, 0, -1), larger.last.outputs)

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

    def in_turn_order(self) -> Order:
        """The order with which members run one after the other."""
        return Order(dict.fromkeys(self.names, 0), in_turn=True, front=self.front)

    def works_in_turn(self) -> bool:
        """Whether members can run in turn, and no norm needs the rows of all members."""
        front = self.front.modules if self.front else ()
        others = {self.plain.get_submodule(name) for name in (*self.names, *front)}
        norms = any(isinstance(module, _BatchNorm) for module in set(self.plain.modules()) - others)
        return not norms and self.works(self.in_turn_order())

    def advice(self, order: Order, options: Sequence[str]) -> str:
        """An error message: where members would be wrong, and which of the options would help."""
        called = {name for name, _ in self.all.calls}
        lost, uncalled = order.lost, [name for name in self.names if name not in called]
        others = [name for name in self.names if name not in (lost or uncalled)]
        without = Trial(self.plain, self.x, others, self.front)
        reason = self.fault(order) or "rows of a larger batch depend on each other"
        cures = []
        if "member_norm" in options and self.works(self.in_turn_order()):
            cures.append("set `member_norm`, so that members can run one after the other")
        if (lost or uncalled) and others and without.works_at_once(without.order()):
            cures.append(leave_out(lost or uncalled, options))
            reason = f"layer '{uncalled[0]}' is not called, its weight is read" if uncalled else reason
        if lost:
            reason = f"rows come to layer '{lost[0]}' in an order that cannot be followed"
        if self.front:
            cures.append(f"branch elsewhere than at '{self.front.branch}'")
        cure = ", or ".join(cures) or "it mixes the rows of a batch, or is random"
        return f"members of this network do not compute what they compute alone: {reason}; {cure}"


def leave_out(names: Sequence[str], options: Sequence[str]) -> str:
    """Advice for layers that cannot have members."""
    if "keep" in options:
        return f"share layers by keep={tuple(names)}"
    return f"name layers other than {tuple(names)}"


def member_trace(trace: Trace, j: int, order: Order) -> Trace:
    """Member j's part of a run of all members."""
    outputs = trace.outputs.unflatten(0, (MEMBERS, -1))[j]
    if order.in_turn:
        count = len(trace.calls) // MEMBERS
        return Trace(outputs, trace.calls[j * count : (j + 1) * count])
    calls = [(name, member_part(rows, order.dims[name], j)) for name, rows in trace.calls]
    return Trace(outputs, calls)


def difference(mine: Trace, alone: Trace) -> str | None:
    """The first layer at which two runs differ, or that their outputs differ; None if they agree."""
    for (name, a), (other, b) in zip(mine.calls, alone.calls, strict=False):
        if name != other or not close(a, b):
            return f"they differ at layer '{other}'"
    same = len(mine.calls) == len(alone.calls) and close(mine.outputs, alone.outputs)
    return None if same else "their outputs differ"


def dim_of_members(all_rows: Tensor, last_rows: Tensor) -> int:
    """The dimension in which the last member's rows are the last block of all rows.

    `SHARED` if the two tensors are the same, `LOST` if there is no such dimension.
    """
    if close(all_rows, last_rows):
        return SHARED
    for dim in range(last_rows.dim()):
        doubled = all_rows.dim() == last_rows.dim() and all_rows.shape[dim] == MEMBERS * last_rows.shape[dim]
        if doubled and close(member_part(all_rows, dim, -1), last_rows):
            return dim
    return LOST


def member_part(rows: Tensor, dim: int, j: int) -> Tensor:
    """The rows of member j; of a shared tensor, all of it."""
    return rows if dim == SHARED else rows.unflatten(dim, (MEMBERS, -1)).select(dim, j)
