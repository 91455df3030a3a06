"""Random streams: one for each purpose and number."""

from __future__ import annotations

import hashlib

import torch


def generator(purpose: str, seed: int) -> torch.Generator:
    """A generator for a purpose and a number. Equal arguments give equal streams, on every device."""
    digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
