"""The base class of ensembles, and how they run their networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from polyphony._util.text import SettingError
from polyphony.compute.parallel import gather
from polyphony.metrics import Predictions
from polyphony.nn import Members, Size, check_members
from polyphony.nn.folding import fold_norms

Call = Callable[[nn.Module, Tensor, bool], Tensor]  # has the arguments of `call_network`


@dataclass(frozen=True)
class SameRows:
    """Every member sees all rows that this process has of a batch, in order."""

    members: int


Assignment = SameRows | Tensor  # which rows each member gets; Tensor [m rows]: indices in the whole batch


class Ensemble(nn.Module):
    """M predictors in one module: each member's logits on its own rows. [m b c h w] → [m b k]"""

    members: int
    expects_diversity: bool = True  # whether `fit` warns if members become equal
    predicts: type[Predictions] = Predictions  # the class of its predictions: how logits are interpreted
    # Whether the M-fold learning rate of `own_parameters` only makes up for the 1/M of a mean over members in
    # the loss. If so, AdamW uses the base rate: its steps do not depend on the scale of gradients.
    scales_gradients: bool = False

    @property
    def device(self) -> torch.device:
        """The device of its weights, where inputs must be too; the CPU if it has no weights."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    def assign(self, size: int, rng: torch.Generator, device: torch.device | str = "cpu") -> Assignment:
        """Which rows of a batch of `size` rows each member sees (default: all, in order).

        If members see different rows, returns their indices in the whole batch, which includes the rows of
        other processes (`parallel.drawn`). [m rows]
        """
        return SameRows(self.members)

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that `fit` trains with M times the rate and 1/M of the weight decay (default: none).

        These belong to one member each. A loss that is a mean over members leaves them 1/M of their gradient.
        """
        return iter(())

    def clip_gradients(self, norm: float) -> None:
        """Scale the gradients of a step so that their norm is at most this."""
        nn.utils.clip_grad_norm_(self.parameters(), norm)

    def ask_all(self, x: Tensor) -> Tensor:
        """Every member's logits for the same images. [b c h w] → [m b k]"""
        return self(x[None] if self.members == 1 else x.expand(self.members, *x.shape))

    def folded(self) -> Ensemble:
        """A faster copy in eval mode, with BatchNorm folded into convolutions."""
        folded = copy.deepcopy(self).eval()
        for name, part in folded.named_children():
            setattr(folded, name, fold_norms(part))
        return folded

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...


def member_rows(batch: Tensor, assignment: Assignment) -> Tensor:
    """Each member's rows of a batch. [b …] → [m rows …]

    If all members see the same rows, returns a view. Ensembles detect this with `share_rows`, and compute
    only once what is the same for all members.
    """
    if isinstance(assignment, SameRows):
        return batch.expand(assignment.members, *batch.shape)
    return gather(batch)[assignment]


def share_rows(x: Tensor) -> bool:
    """Whether all members have the same rows in memory, as after x.expand(members, …). [m …]"""
    return len(x) == 1 or x.stride(0) == 0


def call_network(network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
    """A network's outputs. [b c h w] → [b k]; for rows that all its members share → [(m b) k]"""
    return cast(Tensor, network(rows, shared=True) if shared else network(rows))


class NetworkRunner:
    """Runs a network for an ensemble; tests it with the first images of each size, dtype and device.

    The memory format is channels_last, or contiguous if the network fails with channels_last, as networks
    with `view(b, -1)` do. If the rows of several members are one batch, [(m b) …], `member_count` is their
    number: a call raises a ConversionError if a member does not compute what it computes alone. Images of
    `size` need no such test: the conversion was tested with them.
    """

    def __init__(self, network: nn.Module, member_count: int = 1, size: Size | None = None) -> None:
        self.member_count, self.size = member_count, size
        self.call: Call = call_network
        self.tested: set[tuple[object, ...]] = set()  # size, dtype and device of images that worked
        crashes = any(isinstance(layer, nn.Conv2d) and may_crash(layer) for layer in network.modules())
        self.set_format(network, torch.contiguous_format if crashes else torch.channels_last)

    def set_format(self, network: nn.Module, memory_format: torch.memory_format) -> None:
        """Change the memory format of the network's weights, and of its images from now on."""
        network.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.memory_format = memory_format

    def run_members(self, network: nn.Module, x: Tensor) -> Tensor:
        """The outputs of a converted network; its front runs once if all members see the same rows.

        [m b c h w] → [m b k]
        """
        shared = isinstance(network, Members) and share_rows(x)
        outputs = self(network, x[0] if shared else x.flatten(0, 1), shared)
        return cast(Tensor, outputs.unflatten(0, (len(x), -1)))

    def __call__(self, network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
        """The network's outputs. [b c h w] → [b k]; for rows that all its members share → [(m b) k]"""
        size = tuple(rows.shape[1:])
        if (kind := (size, rows.dtype, rows.device)) in self.tested:
            return self.run(network, rows, shared)
        check_device(network, rows)
        if self.member_count > 1 and size != self.size:
            check_members(network, self.member_count, size)
        try:
            outputs = self.first_run(network, rows, shared)
        except RuntimeError as error:
            check_precision(network, rows, error)
            raise
        if not isinstance(outputs, Tensor):
            raise SettingError(
                f"the network returns a {type(outputs).__name__}, not logits: wrap it in adapt(network)"
            )
        self.tested.add(kind)
        return outputs

    def first_run(self, network: nn.Module, rows: Tensor, shared: bool) -> Tensor:
        """As `run`; if that fails with channels_last but works with contiguous, changes the format."""
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        try:
            return self.run(network, rows, shared)
        except RuntimeError:
            if self.memory_format is torch.contiguous_format:
                raise
        for name, buffer in network.named_buffers():  # BatchNorm may have changed some before the error
            buffer.copy_(buffers[name])
        self.set_format(network, torch.contiguous_format)
        try:
            return self.run(network, rows, shared)
        except RuntimeError:
            self.set_format(network, torch.channels_last)
            raise

    def run(self, network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
        """The network's outputs for images in its memory format."""
        return self.call(network, self.formatted(rows), shared)

    def formatted(self, rows: Tensor) -> Tensor:
        """Images in the network's memory format."""
        return rows.contiguous(memory_format=self.memory_format) if rows.dim() == 4 else rows


@contextmanager
def networks_called_by(call: Call, ensembles: Collection[Ensemble]) -> Iterator[None]:
    """Let ensembles use `call` in place of `call_network` in the `with` block; both compute the same."""
    values = [value for ensemble in ensembles for value in vars(ensemble).values()]
    lists = [value if isinstance(value, list) else [value] for value in values]
    runners = [value for values in lists for value in values if isinstance(value, NetworkRunner)]
    for runner in runners:
        runner.call = call
    try:
        yield
    finally:
        for runner in runners:
            runner.call = call_network


def check_device(network: nn.Module, rows: Tensor) -> None:
    """Raise a SettingError if a network's weights are on another device than its images."""
    weight = next(network.parameters(), rows)
    if weight.device != rows.device:
        where = f"the images are on {rows.device}, the network on {weight.device}"
        raise SettingError(f"{where}: move it by .to('{rows.device}')")


def check_precision(network: nn.Module, rows: Tensor, error: RuntimeError) -> None:
    """Raise a SettingError if the error is explained by weights of another dtype than the images."""
    weight = next(network.parameters(), rows)
    if weight.dtype != rows.dtype and not torch.is_autocast_enabled(rows.device.type):
        message = f"the network's weights are {weight.dtype}, the images {rows.dtype}: call .float()"
        raise SettingError(message) from error


def may_crash(layer: nn.Conv2d) -> bool:
    """Whether this convolution's gradients in channels_last write beyond their memory (PyTorch 2.13, CPU)."""
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < 16


def check_leading(x: Tensor, members: int) -> None:
    """Raise a ValueError unless the leading dimension is the number of members."""
    if len(x) != members:
        raise ValueError(
            f"inputs must be [{members} b …], one part for each member, not {list(x.shape)}:"
            " call ask_all(images), or predict(student, split)"
        )


def check_member(j: int, members: int) -> None:
    """Raise an IndexError unless j is one of the members."""
    if not 0 <= j < members:
        raise IndexError(f"there is no member {j}: members are 0 to {members - 1}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set a module to eval mode inside the `with` block, and restore all modes afterwards."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():  # one by one: some parts may have been in eval mode
            part.training = mode
