"""Fixtures of studies."""

from studies import board, diverging, files, here, quiet, run, sweep_through, tiny_recipe

__all__ = ["board", "diverging", "files", "here", "quiet", "run", "sweep_through", "tiny_recipe"]
