"""Write and read recipe.json: a run's recipe, data, versions and machine."""

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
from polyphony.recipe.sources import CODE_FOLDER
from polyphony.runs.store import SWEEP_FILE, ChangedError, FileError, StoreError, read_json, write_json
from polyphony.study.fingerprints import Fingerprints
from polyphony.study.leftovers import remove_computed
from polyphony.study.study import Study

PACKAGES = ("torch", "numpy", "scipy")  # versions that are always recorded
NETWORK_LIBRARIES = ("timm", "transformers")  # recorded if they are used


def versions(kinds: Collection[str] = ()) -> dict[str, str]:
    """Versions of Python, the main packages, and network libraries that are imported or in `kinds`."""
    result = {"python": platform.python_version(), "polyphony": __version__}
    result |= {name: version(name) for name in PACKAGES}
    for name in NETWORK_LIBRARIES:
        if name in kinds or name in sys.modules:
            with suppress(PackageNotFoundError):  # a run whose trainings are done does not need it
                result[name] = version(name)
    return result


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
    """Write recipe.json; if the data has changed, first remove the predictions and their tables."""
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
        remove_computed(study.folder, [study.folder / "predictions"])
    keep_code(recipe, study.folder / CODE_FOLDER)
    write_json(path, record)


@contextmanager
def naming_changed_code(study: Study) -> Iterator[None]:
    """Add the user's code that differs from the run's copy to the message of a ChangedError."""
    try:
        yield
    except ChangedError as error:
        changes = changed_code(study.recipe, study.folder / CODE_FOLDER)
        raise ChangedError(f"{error}; changed since: {changes}") if changes else error from None


def portable_network(table: NetworkTable) -> dict[str, Any]:
    """The students' network without the files that its table names.

    Empty if the table names no file, or if the network needs the files.
    """
    try:
        portable = table.portable()
    except RecipeError:
        return {}
    return {} if portable is table else portable.model_dump(mode="json", exclude_none=True)


def open_study(folder: Path, data_root: Path | None, device: str) -> Study:
    """The study in a folder; raises a StoreError if there is none or if it is a sweep."""
    refuse_sweep(folder)
    return Study(stored_recipe(folder), folder, data_root, device)


def stored_recipe(folder: Path, code: bool = True) -> Recipe:
    """The recipe in recipe.json; with code=False the user's modules are not imported. Raises a FileError."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise FileError(path, "is not there")
    table = read_json(path).get("recipe")
    if not isinstance(table, dict):
        raise FileError(path, "does not hold a recipe")
    return check(table, str(path), code=code, stored=True)


def refuse_sweep(folder: Path) -> None:
    """Raise a StoreError for the folder of a sweep, which must not use test images."""
    if (folder / SWEEP_FILE).exists():
        raise StoreError(
            f"{folder} holds a sweep, which must not use test images:"
            " put its best point into a recipe and study that in another folder"
        )
