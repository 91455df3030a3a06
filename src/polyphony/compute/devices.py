"""Chooses a device, sends tensors to it without waiting, and sets its arithmetic and the CPU's memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
KEPT_BYTES = 2**30


def choose_device(name: str = "auto") -> str:
    """The name of a device that works here; "auto" is the best one: CUDA, then MPS, then CPU.

    Raises a ValueError if there is no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).cpu()  # rejects `meta`
    except (RuntimeError, AssertionError) as error:
        kind = name.partition(":")[0]
        reason = "use cuda, mps, cpu or auto" if kind not in ("cuda", "mps") else "no such GPU was found"
        if kind == "cuda" and not torch.backends.cuda.is_built():
            reason = "this is a CPU build of PyTorch"
        raise ValueError(f"there is no device '{name}' here: {reason}") from error
    return name


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device. For CUDA it is pinned first, so that the copy does not block."""
    target = torch.device(device).type
    # A copy to MPS that does not block may read freed memory.
    if tensor.device.type != "cpu" or target in ("cpu", "mps"):
        return tensor.to(device)
    return (tensor.pin_memory() if target == "cuda" else tensor).to(device, non_blocking=True)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context that disables autocast, on devices that have it."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory for its next tensors (glibc; elsewhere no effect).

    By default glibc returns the memory of large tensors to the system, and a training step on a CPU spends
    up to a tenth of its time on page faults.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(parameter, KEPT_BYTES)


@contextmanager
def arithmetic(tf32: bool = False, deterministic: bool = False) -> Iterator[None]:
    """Set the arithmetic of CUDA inside the `with` block (default: full float32, the fastest kernels).

    With `tf32`, matrix products and convolutions use TF32. With `deterministic`, only deterministic kernels
    run. PyTorch's own defaults are TF32 in convolutions, and kernels that may differ from run to run.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (
        matmul.allow_tf32,
        cudnn.allow_tf32,
        cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    )
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it
    set_arithmetic(tf32, tf32, not deterministic, deterministic)
    try:
        yield
    finally:
        set_arithmetic(*before)


def set_arithmetic(matmul_tf32: bool, convolution_tf32: bool, benchmark: bool, deterministic: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = matmul_tf32
    torch.backends.cudnn.allow_tf32 = convolution_tf32
    torch.backends.cudnn.benchmark = benchmark
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the switch imports PyTorch's compiler
        torch.use_deterministic_algorithms(deterministic)
