"""A test device in Python, "sim": its tensors hold real values, mix with no others, and are counted.

What is done on it is computed on the CPU, so that results must be equal bit for bit. A CPU tensor in an
operation on the device raises, as on an accelerator, and also where CUDA would copy it in silence. `reset`
says how often the host waited for the device (`waits`), and what it sent there: without waiting (`sent`), or
waiting for the copy (`blocking`). `torch.tensor(…, device="sim")` and `new_tensor` fail in PyTorch itself: in
a step they would be copies that are waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
WAITING = {  # the host needs a value, or a shape that depends on values
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
}


@dataclass
class Count:
    """What passed between host and device."""

    waits: list[str] = field(default_factory=list)
    sent: list[tuple[int, ...]] = field(default_factory=list)  # shapes
    blocking: list[tuple[int, ...]] = field(default_factory=list)


COUNT = Count()


def reset() -> Count:
    """What passed between host and device since the last call."""
    global COUNT
    COUNT, found = Count(), COUNT
    return found


class Backend(_DummyBackendModule):
    """What torch.sim is asked for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object) -> Tensor:
        return torch.empty(0)  # it draws nothing

    def set_rng_state(self, state: Tensor, device: object) -> None:
        pass


class Sim(Tensor):
    """A tensor on the device; `raw` is its memory."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: Tensor) -> Sim:
        sim: Sim = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("sim:0"),
        )
        sim.raw = raw
        return sim

    def __repr__(self, **_: Any) -> str:
        return f"Sim({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(op, *args, **(kwargs or {}))


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation of which some tensor is on the device, or is to be."""
    name = op._schema.name
    if name in COPIES:
        return copy(op, name, args, kwargs)
    tensors = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
    for tensor in tensors:
        if not isinstance(tensor, Sim) and tensor.dim():  # a number in a tensor may come from anywhere
            raise RuntimeError(f"{name} got tensors on sim and on {tensor.device}")
    if name in WAITING or (name == "aten::index" and any(t.dtype == torch.bool for t in tensors[1:])):
        COUNT.waits.append(name)
    return on_device(op, args, kwargs, tensors)


def on_device(op: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor] = ()) -> Any:
    """Compute on the CPU; what comes out is on the device, and what is changed in place stays itself."""
    if kwargs:
        kwargs = {name: raw(value) for name, value in kwargs.items() if name != "pin_memory"}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
    out = op(*raw(args), **kwargs)
    same = {id(raw(t)): t for t in tensors} if op._schema.is_mutable else {}
    return wrapped(out, same)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Every tensor, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def raw(value: Any) -> Any:
    """A tensor's memory, also in lists; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)([raw(each) for each in value])
    return value.raw if isinstance(value, Sim) else value


def wrapped(value: Any, same: dict[int, Tensor]) -> Any:
    """A result on the device, also in lists."""
    if isinstance(value, list | tuple):
        return type(value)([wrapped(each, same) for each in value])
    return (same.get(id(value)) if id(value) in same else Sim(value)) if isinstance(value, Tensor) else value


def copy(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A copy to the device, from it, or within it; one into a given tensor gives that tensor back."""
    if name != "aten::_to_copy":
        target, source = args[:2] if name == "aten::copy_" else args[1::-1]
        note(source, isinstance(target, Sim), bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
        raw(target).copy_(raw(source))
        return target
    to_sim = torch.device(kwargs.get("device") or args[0].device).type == "sim"
    note(args[0], to_sim, bool(kwargs.get("non_blocking")))
    if to_sim:
        return on_device(op, args, kwargs)
    return op(raw(args[0]), **kwargs)


def note(source: Tensor, to_sim: bool, non_blocking: bool) -> None:
    """Count a copy; one from the device is waited for."""
    if to_sim and not isinstance(source, Sim):
        (COUNT.sent if non_blocking else COUNT.blocking).append(tuple(source.shape))
    elif isinstance(source, Sim) and not to_sim:
        COUNT.waits.append("to cpu")


_setup_privateuseone_for_python_backend("sim", backend_module=Backend())
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(run, "PrivateUse1")
