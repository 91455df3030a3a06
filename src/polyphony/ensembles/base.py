"""What all ensembles have in common."""

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

Asking = Callable[[nn.Module, Tensor, bool], Tensor]  # as `ask`


@dataclass(frozen=True)
class SameRows:
    """Every member sees the rows that this process has of a batch, in order."""

    members: int


Assignment = SameRows | Tensor  # which rows each member gets; Tensor [m rows]: indices in the whole batch


class Ensemble(nn.Module):
    """M predictors in one module: each member's logits on its own rows. [m b c h w] → [m b k]"""

    members: int
    expects_diversity: bool = True  # whether members that become alike in training are worth a warning
    predicts: type[Predictions] = Predictions  # what its logits are
    scales_gradients: bool = False  # whether M times the rate of `own_parameters` is for M times the gradient

    @property
    def device(self) -> torch.device:
        """Where its weights are, and so its inputs; the CPU for one without any."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    def assign(self, size: int, rng: torch.Generator, device: torch.device | str = "cpu") -> Assignment:
        """Which examples of a batch of `size` rows each member sees: by default all, in order.

        An ensemble whose members see different examples returns their indices in the whole batch, the rows of
        all processes included (`parallel.drawn`). [m rows]
        """
        return SameRows(self.members)

    def own_parameters(self) -> Iterator[nn.Parameter]:
        """What `fit` teaches M times as fast, with an M-th of the weight decay: here nothing.

        For what is a member's own in a loss that is a mean over members, which leaves it an M-th of its
        gradient.
        """
        return iter(())

    def ask_all(self, x: Tensor) -> Tensor:
        """Every member's logits of the same images. [b c h w] → [m b k]"""
        return self(x[None] if self.members == 1 else x.expand(self.members, *x.shape))

    def folded(self) -> Ensemble:
        """The same in eval mode, quicker: a copy with BatchNorm folded into convolutions."""
        quick = copy.deepcopy(self).eval()
        for name, part in quick.named_children():
            setattr(quick, name, fold_norms(part))
        return quick

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Tensor: ...


def member_rows(batch: Tensor, assignment: Assignment) -> Tensor:
    """Each member's rows of a batch. [b …] → [m rows …]

    Where all members see the same rows it is a view, so that an ensemble may notice (`share_rows`) and do
    once what is the same for all.
    """
    if isinstance(assignment, SameRows):
        return batch.expand(assignment.members, *batch.shape)
    return gather(batch)[assignment]


def share_rows(x: Tensor) -> bool:
    """Whether all members have the same rows in memory, as in x.expand(members, …). [m …]"""
    return len(x) == 1 or x.stride(0) == 0


def ask(network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
    """A network's outputs. [b c h w] → [b k]; for rows that all its members share → [(m b) k]"""
    return cast(Tensor, network(rows, shared=True) if shared else network(rows))


class NetworkRunner:
    """Runs a network for an ensemble, laid out channels_last where that works, with rows that do not mix.

    The first images of a size decide. A network that channels_last breaks, as `view(b, -1)` does, gets the
    usual layout. Where rows of `folded` members are one batch, [(m b) …], it is a ConversionError if a
    member's outputs are not what they are alone; of images of `size` that is known already.
    """

    def __init__(self, network: nn.Module, folded: int = 1, size: Size | None = None) -> None:
        self.folded, self.size = folded, size
        self.ask: Asking = ask
        self.seen: set[tuple[object, ...]] = set()  # sizes of images, with their types and devices
        fatal = any(isinstance(layer, nn.Conv2d) and is_fatal(layer) for layer in network.modules())
        self.lay_out(network, torch.contiguous_format if fatal else torch.channels_last)

    def lay_out(self, network: nn.Module, memory_format: torch.memory_format) -> None:
        """Change how the network's weights lie in memory, and from now on its images."""
        network.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.memory_format = memory_format

    def members(self, network: nn.Module, x: Tensor) -> Tensor:
        """The outputs of a converted network, which runs once what members that see the same rows share.

        [m b c h w] → [m b k]
        """
        shared = isinstance(network, Members) and share_rows(x)
        outputs = self(network, x[0] if shared else x.flatten(0, 1), shared)
        return cast(Tensor, outputs.unflatten(0, (len(x), -1)))

    def __call__(self, network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
        """The network's outputs. [b c h w] → [b k]; for rows that all its members share → [(m b) k]"""
        size = tuple(rows.shape[1:])
        if (kind := (size, rows.dtype, rows.device)) in self.seen:
            return self.run(network, rows, shared)
        check_device(network, rows)
        if self.folded > 1 and size != self.size:
            check_members(network, self.folded, size)
        try:
            outputs = self.first_run(network, rows, shared)
        except RuntimeError as error:
            check_precision(network, rows, error)
            raise
        self.seen.add(kind)
        return outputs

    def first_run(self, network: nn.Module, rows: Tensor, shared: bool) -> Tensor:
        """As `run`, in the usual layout from now on if it works there alone."""
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        try:
            return self.run(network, rows, shared)
        except RuntimeError:
            if self.memory_format is torch.contiguous_format:
                raise
        for name, buffer in network.named_buffers():  # what a norm may have counted before it broke
            buffer.copy_(buffers[name])
        self.lay_out(network, torch.contiguous_format)
        try:
            return self.run(network, rows, shared)
        except RuntimeError:
            self.lay_out(network, torch.channels_last)
            raise

    def run(self, network: nn.Module, rows: Tensor, shared: bool = False) -> Tensor:
        """The network on images that lie in memory as it likes them."""
        return self.ask(network, self.laid_out(rows), shared)

    def laid_out(self, rows: Tensor) -> Tensor:
        """Images as they lie in memory for the network."""
        return rows.contiguous(memory_format=self.memory_format) if rows.dim() == 4 else rows


@contextmanager
def asking_by(how: Asking, ensembles: Collection[Ensemble]) -> Iterator[None]:
    """Let ensembles run their networks by `how`, which must compute the same as `ask`."""
    values = [value for ensemble in ensembles for value in vars(ensemble).values()]
    lists = [value if isinstance(value, list) else [value] for value in values]
    runners = [each for several in lists for each in several if isinstance(each, NetworkRunner)]
    for runner in runners:
        runner.ask = how
    try:
        yield
    finally:
        for runner in runners:
            runner.ask = ask


def check_device(network: nn.Module, rows: Tensor) -> None:
    """Raise where a network's weights are on another device than its images."""
    weight = next(network.parameters(), rows)
    if weight.device != rows.device:
        where = f"the images are on {rows.device}, the network on {weight.device}"
        raise SettingError(f"{where}: move it by .to('{rows.device}')")


def check_precision(network: nn.Module, rows: Tensor, error: RuntimeError) -> None:
    """Raise where a network failed since its weights are of another precision than its images."""
    weight = next(network.parameters(), rows)
    if weight.dtype != rows.dtype and not torch.is_autocast_enabled(rows.device.type):
        words = f"the network's weights are {weight.dtype}, the images {rows.dtype}: call .float()"
        raise SettingError(words) from error


def is_fatal(layer: nn.Conv2d) -> bool:
    """Whether PyTorch 2.13 on a CPU writes beyond its memory in a convolution's gradients, channels_last."""
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < 16


def check_leading(x: Tensor, members: int) -> None:
    """Raise unless the leading dimension is the members'."""
    if len(x) != members:
        raise ValueError(f"inputs [m b …] for {members} members have a leading dimension of {len(x)}")


def check_member(j: int, members: int) -> None:
    """Raise unless j is one of the members."""
    if not 0 <= j < members:
        raise IndexError(f"member {j} of {members}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in eval mode for a while, then as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():  # one by one: some part may be frozen
            part.training = mode
