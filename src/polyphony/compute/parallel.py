"""Trains one model in several processes: all draw the same numbers, each computes its rows of every batch.

A recipe's `batch` is the size of the whole batch, for any number of processes. Every process has the same
generator, draws for the whole batch, and keeps its rows. So results do not depend on the number of processes,
except for rounding, and a training that one process began can continue with eight. Use `drawn` to draw for a
batch, and `gather` to get the rows of other processes; in a single process both change nothing.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import MethodType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyphony._util.text import SettingError
from polyphony.compute.devices import send

Result = TypeVar("Result")

TIMEOUT = timedelta(hours=2)  # then a silent process counts as lost; others wait while the first predicts


class GroupError(RuntimeError):
    """Another process of this training failed, ended, or does not answer."""


class GoneError(GroupError):
    """Another process of this training ended or does not answer; the training can be started again."""


@dataclass(eq=False)
class Group:
    """The processes that train one model together (default: this one alone)."""

    rank: int = 0
    size: int = 1
    total: int = 0  # rows of the current batch in all processes
    # On CUDA: the SyncBatchNorm that runs in place of each BatchNorm.
    synced: dict[nn.Module, nn.Module] = field(default_factory=dict)

    @property
    def shares(self) -> bool:
        """Whether the batch is divided; if it has fewer rows than processes, each computes all rows."""
        return self.size > 1 and self.total >= self.size

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of this process in the batch, and its number of rows."""
        first, end = (rank * self.total // self.size for rank in (self.rank, self.rank + 1))
        return first, end - first

    @property
    def weight(self) -> float:
        """The weight of a mean over this process's rows in the mean over the batch."""
        return self.rows[1] / self.total if self.shares else 1 / self.size

    def own(self, batch: Tensor, dim: int = 0) -> Tensor:
        """This process's part of a tensor for the whole batch, which may have several entries per row."""
        if not self.shares:
            return batch
        (first, count), times = self.rows, batch.shape[dim] // self.total
        return batch.narrow(dim, first * times, count * times)

    def sum(self, values: Tensor) -> Tensor:
        """Sum values over all processes, in place."""
        if self.size > 1:
            with as_gone_error():
                dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum all gradients over all processes in place, by one reduction."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def check_draws(self, rng: torch.Generator) -> None:
        """Raise a GroupError unless all processes have drawn the same numbers."""
        checksums = torch.zeros(self.size, dtype=torch.int64)
        checksums[self.rank] = zlib.crc32(rng.get_state().numpy().tobytes())
        if len(set(self.sum(checksums).tolist())) > 1:
            raise GroupError(
                "the processes have drawn different numbers: draw for a batch by `parallel.drawn`"
            )

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Call `make` in the first process, and return its result in all processes.

        If it fails, the first process raises its error, and the others a GroupError.
        """
        if self.size == 1:
            return make()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = make()
            except Exception as error:
                outcome[1] = f"{type(error).__name__}: {error}"
                dist.broadcast_object_list(outcome)
                raise
        with as_gone_error():
            dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise GroupError(f"the first process failed ({outcome[1]})")
        return outcome[0]  # type: ignore[no-any-return]

    @contextmanager
    def training(self, model: nn.Module) -> Iterator[None]:
        """Inside the `with` block, divide batches, and let BatchNorm use the rows of all processes.

        Raises a SettingError for a BatchNorm with a forward of its own.
        """
        global _current
        norms = [part for part in model.modules() if isinstance(part, _BatchNorm)] if self.size > 1 else []
        for norm in norms:
            if type(norm).forward is not _BatchNorm.forward:
                raise SettingError(
                    f"a {type(norm).__name__} is not a plain BatchNorm: train it in one process"
                )
        _current, before = self, _current
        for norm in norms:
            norm.forward = MethodType(self._normalise, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            _current = before
            self.synced.clear()
            for norm in norms:
                del norm.forward

    def _normalise(self, norm: _BatchNorm, x: Tensor) -> Tensor:
        if not (norm.training and self.shares):
            return type(norm).forward(norm, x)
        if not x.is_cuda:
            return normalise(norm, x, self)
        if norm not in self.synced:  # the converted norm shares the norm's parameters and buffers
            self.synced[norm] = nn.SyncBatchNorm.convert_sync_batchnorm(norm).train()
        return cast(Tensor, self.synced[norm](x))


# The group that shares the current batch; only `Group.training` sets it, for its `with` block. It is not an
# argument, because users' perturbations draw without knowing about groups, and not a ContextVar, because
# torch.compile cannot read one.
_current = Group()


def share(rows: Tensor) -> Tensor:
    """This process's rows of a new batch; from now on draws are for this batch."""
    _current.total = len(rows)
    return _current.own(rows)


def drawn(
    make: Callable[[int], Tensor], size: int, device: torch.device | str = "cpu", dim: int = 0
) -> Tensor:
    """Call `make` to draw for the whole batch, and return the `size` rows of this process on a device."""
    batch = make(_current.total if _current.shares else size)
    return send(_current.own(batch, dim).contiguous(), device)


def gather(rows: Tensor, dim: int = 0) -> Tensor:
    """The rows of all processes in order, without gradients."""
    if not _current.shares:
        return rows
    shape = list(rows.shape)
    shape[dim] = shape[dim] * _current.total // _current.rows[1]
    batch = rows.new_zeros(shape)
    _current.own(batch, dim).copy_(rows.detach())
    return _current.sum(batch)


class Summed(torch.autograd.Function):
    """Sums values over all processes, and their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.sum(values.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(gradients[0].clone()), None


def summed(values: Tensor, group: Group) -> Tensor:
    """Values summed over all processes, with gradients."""
    return cast(Tensor, Summed.apply(values, group))  # type: ignore[no-untyped-call]


def normalise(norm: _BatchNorm, x: Tensor, group: Group) -> Tensor:
    """BatchNorm in training, with statistics over the rows of all processes. [b c …]"""
    over, shape = [0, *range(2, x.dim())], (-1, *(1 for _ in x.shape[2:]))
    values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    count = round(values.numel() / values.shape[1] / group.weight)
    mean = summed(values.sum(over), group) / count
    centred = values - mean.view(shape)
    variance = summed(centred.square().sum(over), group) / count
    update_statistics(norm, mean.detach(), variance.detach() * count / (count - 1))
    out = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    return out.to(x.dtype)


@torch.no_grad()
def update_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update a BatchNorm's running statistics, as PyTorch does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    rate = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), rate)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), rate)


@contextmanager
def as_gone_error() -> Iterator[None]:
    """Raise a GoneError if communication between processes fails."""
    try:
        yield
    except RuntimeError as error:
        raise GoneError("another process of this training ended, or did not answer for too long") from error


@cache
def group_from_environment() -> Group:
    """The group of the processes that torchrun started; without torchrun, this process alone."""
    if not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        return Group()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    cuda = local <= torch.cuda.device_count()  # a GPU for each process, or none
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
    return Group(dist.get_rank(), dist.get_world_size())


def leave(group: Group) -> None:
    """Wait for all processes and end the group; otherwise a process could abort while threads still run."""
    if group.size > 1:
        dist.barrier()
        dist.destroy_process_group()
