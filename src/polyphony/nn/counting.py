"""Counts operations as they are called; on the meta device without computing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FEW = 2  # images, which normalisation needs


@dataclass(frozen=True)
class Count:
    """How many operations a batch calls, and how many floating-point operations each of its images takes."""

    calls: int
    flops: float


class Shape(NamedTuple):
    """A tensor without its numbers."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Counting(TorchDispatchMode):
    """Counts operations, and the arithmetic of products and convolutions by PyTorch's formulas.

    On the meta device an operation on shapes that it has seen is not run again, which would be slow: its
    outputs are made of their shapes. PyTorch's FlopCounterMode runs all of them, and its hooks fail inside
    torch.autograd.grad.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.flops = 0, 0
        self.seen: dict[Any, tuple[int, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip PyTorch's compiler would import it, which takes seconds

    def of(self, run: Callable[[], object]) -> Count:
        """The operations that `run` calls, for a few images."""
        self.calls, self.flops = 0, 0
        with self:
            run()
        return Count(self.calls, self.flops / FEW)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or make what it would give, and count it."""
        kwargs = kwargs or {}
        self.calls += 1
        fills = aliases(func) and writes(func) and args[0].is_meta
        if aliases(func) and not fills:
            return func(*args, **kwargs)
        key = (func, shapes(args), shapes(kwargs))
        if key in self.seen:
            flops, kept = self.seen[key]
            self.flops += flops
            return args[0] if fills else blanks(kept)
        draws = fills and not any(isinstance(value, Tensor) for value in args[1:])
        out = args[0] if draws else func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        flops = formula(*args, **kwargs, out_val=out) if formula else 0
        if is_blank(out):
            self.seen[key] = flops, shapes(out)
        self.flops += flops
        return out


@cache
def aliases(func: Any) -> bool:
    """Whether an operation returns one of its arguments, or a view of it."""
    return any(result.alias_info is not None for result in func._schema.returns)


@cache
def writes(func: Any) -> bool:
    """Whether an operation writes numbers into its first argument, and leaves its shape."""
    return func._schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags


def shapes(value: Any) -> Any:
    """Arguments or results of an operation, with shapes in the place of tensors."""
    if isinstance(value, Tensor):
        return Shape(value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, list | tuple):
        return tuple([shapes(each) for each in value])
    return tuple(value) + shapes(tuple(value.values())) if isinstance(value, dict) else value


def blanks(value: Any) -> Any:
    """Tensors of these shapes."""
    if isinstance(value, Shape):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
    return tuple(map(blanks, value)) if isinstance(value, tuple) else value


def is_blank(value: Any) -> bool:
    """Whether results are tensors without numbers, or nothing."""
    if isinstance(value, Tensor):
        return value.device.type == "meta"
    return all(map(is_blank, value)) if isinstance(value, list | tuple) else value is None
