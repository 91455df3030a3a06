"""Counts the operations that PyTorch runs; on the meta device they are not computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FEW = 2  # images in a counted batch: BatchNorm needs two in training


@dataclass(frozen=True)
class Count:
    """The number of calls of operations for a batch, and of floating-point operations for each image."""

    calls: int
    flops: float


class Shape(NamedTuple):
    """Describes a tensor without its data."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Counting(TorchDispatchMode):
    """Counts operations, and floating-point operations of products and convolutions by PyTorch's formulas.

    On the meta device an operation runs only once for the same shapes: later calls get outputs made from the
    cached shapes, which is faster. PyTorch's FlopCounterMode runs all of them, and its hooks fail inside
    torch.autograd.grad.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.flops = 0, 0
        self.cache: dict[Any, tuple[int, Any]] = {}  # operation and input shapes → flops, output shapes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import PyTorch's compiler, which takes seconds

    def of(self, run: Callable[[], object]) -> Count:
        """The operations of `run()`, which computes on `FEW` images."""
        self.calls, self.flops = 0, 0
        with self:
            run()
        return Count(self.calls, self.flops / FEW)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and run it, or make its outputs from cached shapes."""
        kwargs = kwargs or {}
        self.calls += 1
        fills_meta = aliases(func) and writes(func) and args[0].is_meta
        if aliases(func) and not fills_meta:
            return func(*args, **kwargs)
        key = (func, shapes(args), shapes(kwargs))
        if key in self.cache:
            flops, output_shapes = self.cache[key]
            self.flops += flops
            return args[0] if fills_meta else empty_tensors(output_shapes)
        needs_no_run = fills_meta and not any(isinstance(value, Tensor) for value in args[1:])
        out = args[0] if needs_no_run else func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        flops = formula(*args, **kwargs, out_val=out) if formula else 0
        if is_meta(out):
            self.cache[key] = flops, shapes(out)
        self.flops += flops
        return out


@cache
def aliases(func: Any) -> bool:
    """Whether an operation returns one of its arguments or a view of one."""
    return any(result.alias_info is not None for result in func._schema.returns)


@cache
def writes(func: Any) -> bool:
    """Whether an operation changes the values of its first argument, but not its shape."""
    return func._schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags


def shapes(value: Any) -> Any:
    """Arguments or results of an operation, with a `Shape` in place of each tensor."""
    if isinstance(value, Tensor):
        return Shape(value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, list | tuple):
        return tuple([shapes(item) for item in value])
    return tuple(value) + shapes(tuple(value.values())) if isinstance(value, dict) else value


def empty_tensors(value: Any) -> Any:
    """The inverse of `shapes`: a new tensor in place of each `Shape`."""
    if isinstance(value, Shape):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
    return tuple(map(empty_tensors, value)) if isinstance(value, tuple) else value


def is_meta(value: Any) -> bool:
    """Whether all results of an operation are on the meta device, or None."""
    if isinstance(value, Tensor):
        return value.device.type == "meta"
    return all(map(is_meta, value)) if isinstance(value, list | tuple) else value is None
