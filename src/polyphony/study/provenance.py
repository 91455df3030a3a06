"""recipe.json: a run's recipe, data, versions and machine; and the study that it describes."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polyphony import __version__
from polyphony._util.files import cores, processor
from polyphony.compute.parallel import group_from_environment
from polyphony.recipe import NetworkTable, Recipe, RecipeError, check
from polyphony.recipe.python import changed_code, keep_code
from polyphony.recipe.sources import KEPT
from polyphony.runs.store import ChangedError, FileError, StoreError, read_json, write_json
from polyphony.study.fingerprints import Fingerprints
from polyphony.study.leftovers import forget
from polyphony.study.study import Study

NAMED = ("torch", "numpy", "scipy")  # packages whose versions are recorded
LIBRARIES = ("timm", "transformers")  # and those of networks, if they are used


def versions(kinds: Collection[str] = ()) -> dict[str, str]:
    """Versions of Python, the main packages, and libraries of networks that are imported or in `kinds`."""
    found = {"python": platform.python_version(), "polyphony": __version__}
    found |= {name: version(name) for name in NAMED}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):  # a run whose trainings are done does not need it
            found |= {name: version(name)} if name in kinds or name in sys.modules else {}
    return found


def machine(study: Study) -> dict[str, Any]:
    """The machine and the settings that change rounding."""
    return {
        "processor": processor(),
        "cores": cores(),
        "device": study.device,
        "threads": study.threads(),
        "processes": group_from_environment().size,
        "precision": study.recipe.precision,
        "deterministic": study.recipe.deterministic,
        "way": study.recipe.way,
        "compile": study.recipe.compile,
        "system": platform.platform(),
    }


def write_provenance(study: Study, prints: Fingerprints) -> None:
    """Write recipe.json: the resolved recipe, the data, versions and machine."""
    splits, recipe = study.data(), study.recipe
    networks = (recipe.student_network, recipe.teachers.network, *recipe.teachers.networks)
    record = {
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "data": {"origin": splits.origin, **prints.images},
        "images": {
            "classes": splits.classes,
            "shape": list(splits.train.images.shape[1:]),
            "resize": splits.resize,
        },
        "network": portable_network(recipe.student_network),
        "versions": versions({getattr(table, "kind", "") for table in networks}),
        "machine": machine(study),
    }
    path = study.folder / "recipe.json"
    if path.exists() and read_json(path).get("data") != record["data"]:
        forget(study.folder, [study.folder / "predictions"])
    keep_code(recipe, study.folder / KEPT)
    write_json(path, record)


@contextmanager
def code_named(study: Study) -> Iterator[None]:
    """Add to a ChangedError the user's function that differs from the run's copy, if one does."""
    try:
        yield
    except ChangedError as error:
        where = changed_code(study.recipe, study.folder / KEPT)
        raise ChangedError(f"{error}; changed since: {where}") if where else error from None


def portable_network(table: NetworkTable) -> dict[str, Any]:
    """The students' network without files that its table names; empty if it names none, or needs them."""
    try:
        found = table.portable()
    except RecipeError:
        return {}
    return {} if found is table else found.model_dump(mode="json", exclude_none=True)


def open_study(folder: Path, data_root: Path | None, device: str) -> Study:
    refuse_sweep(folder)
    return Study(stored_recipe(folder), folder, data_root, device)


def stored_recipe(folder: Path, code: bool = True) -> Recipe:
    """The recipe of a run; with code=False the user's modules are not imported."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise FileError(path, "is not there")
    table = read_json(path).get("recipe")
    if not isinstance(table, dict):
        raise FileError(path, "does not hold a recipe")
    return check(table, str(path), code=code)


def refuse_sweep(folder: Path) -> None:
    """Raise a StoreError for the folder of a sweep, which must not use test images."""
    if (folder / "sweep.json").exists():
        raise StoreError(
            f"{folder} holds a sweep, which must not use test images:"
            " put its best point into a recipe and study that in another folder"
        )
