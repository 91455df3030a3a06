"""Fixtures of studies."""

from studies import (
    board,
    diverging,
    files,
    finished,
    here,
    jobs_of,
    quiet,
    run,
    stripes,
    sweep_through,
    tiny_recipe,
)

__all__ = [
    "board",
    "diverging",
    "files",
    "finished",
    "here",
    "jobs_of",
    "quiet",
    "run",
    "stripes",
    "sweep_through",
    "tiny_recipe",
]
