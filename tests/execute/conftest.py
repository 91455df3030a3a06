"""Fixtures of studies."""

from studies import board, files, finished, here, jobs_of, quiet, run, stripes, tiny_recipe

__all__ = ["board", "files", "finished", "here", "jobs_of", "quiet", "run", "stripes", "tiny_recipe"]
