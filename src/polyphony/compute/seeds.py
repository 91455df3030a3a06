"""Random generators: one for each purpose and seed."""

from __future__ import annotations

import hashlib

import torch


def generator(purpose: str, seed: int) -> torch.Generator:
    """A generator for a purpose and a seed. It is on the CPU: equal arguments give equal draws everywhere."""
    digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))
