"""Where a result comes from: the versions it ran with, the machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from polyphony._util.files import cores, processor
from polyphony.compute.parallel import group_from_environment
from polyphony.recipe import Recipe
from polyphony.study.study import Study

NAMED = ("polyphony", "torch", "numpy", "scipy")  # packages whose versions are recorded
LIBRARIES = ("timm", "transformers")  # and those of networks, where they are used


def versions(kinds: Collection[str] = ()) -> dict[str, str]:
    """Of Python, the packages that matter, and libraries of networks that are imported, or are `kinds`."""
    found = {"python": platform.python_version(), **{name: version(name) for name in NAMED}}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):  # a run whose trainings are done may do without
            found |= {name: version(name)} if name in kinds or name in sys.modules else {}
    return found


def network_kinds(recipe: Recipe) -> set[str]:
    """The kinds of the networks that a recipe names."""
    tables = (recipe.student_network, recipe.teachers.network, *recipe.teachers.networks)
    return {getattr(table, "kind", "") for table in tables}


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
