"""What is asked of a device: which there is, tensors sent to it without waiting, and to wait for its work."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_device(name: str = "auto") -> str:
    """The device named, or the best there is: CUDA, then MPS, then CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"there is no device '{name}' here; leave --device out to take the best there is"
        ) from error
    return name


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. One on the CPU is pinned for CUDA, so that nobody waits for the copy."""
    target = torch.device(device).type
    if tensor.device.type != "cpu" or target in ("cpu", "mps"):  # MPS may read memory that is free again
        return tensor.to(device)
    return (tensor.pin_memory() if target == "cuda" else tensor).to(device, non_blocking=True)


def wait_for(device: torch.device) -> None:
    """Until a device has done all it was asked for; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
