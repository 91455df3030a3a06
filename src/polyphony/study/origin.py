"""Where a result comes from: the versions it ran with, the machine."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from polyphony.machine import cores, processor
from polyphony.parallel import group_from_environment
from polyphony.study.study import Study

NAMED = ("polyphony", "torch", "numpy", "scipy")  # packages whose versions are recorded


def versions() -> dict[str, str]:
    """Of Python and the packages that matter."""
    return {"python": platform.python_version(), **{name: version(name) for name in NAMED}}


def machine(study: Study) -> dict[str, Any]:
    """What a study runs on."""
    return {
        "processor": processor(),
        "cores": cores(),
        "device": study.device,
        "threads": study.threads,
        "processes": group_from_environment().size,
        "precision": study.recipe.precision,
        "deterministic": study.recipe.deterministic,
        "way": study.recipe.way,
        "compile": study.recipe.compile,
        "system": platform.platform(),
    }
