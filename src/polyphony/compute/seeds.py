"""Where randomness comes from: one stream for each purpose and number, wherever it is asked for."""

from __future__ import annotations

import hashlib

import torch


def generator(purpose: str, seed: int) -> torch.Generator:
    """A generator by its purpose and number: equal arguments, equal stream, on every device."""
    digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
