"""kind = "python": networks, forms and perturbations from the user's own module."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator

from polyphony._util.files import out_of_memory
from polyphony._util.settings import Settings
from polyphony._util.text import first_line
from polyphony.recipe.sources import (
    LIBRARY,
    changed_definition,
    copy_files,
    file_of,
    fingerprint,
    is_installed,
    own_files,
    packages,
    source,
)
from polyphony.recipe.table import RecipeError

NOT_ERRORS = (KeyboardInterrupt, GeneratorExit)
# Files of the user's modules that this process has imported. Only `PythonTable.module` adds to it.
# It is global because imports are: the code that catches an error (`run_job`, the command) does not know the
# tables, and `put_folder_first` removes modules from sys.modules while their objects are still in use.
_imported_files: set[str] = set()


class PythonTable(Settings):
    """An object of the user's, by the name of the function or class that makes it.

    Python looks for the module in the recipe's folder first. Reading a recipe does not import it; building
    does.
    """

    kind: Literal["python"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """"module:function" or "module:Class". The recipe's folder is searched for the module first."""
    args: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Arguments of the function or class."""
    folder: Annotated[str, Field(validate_default=True)] = ""
    """Folder of the module (default: the recipe's)."""

    @field_validator("folder")
    @classmethod
    def _defaults_to_the_recipes_folder(cls, folder: str, info: ValidationInfo) -> str:
        return folder or str((info.context or {}).get("folder", ""))

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The settings; instead of the folder, the hash of the syntax trees of the module and its helpers."""
        settings = super().spec(type(self).model_fields.keys() - {"folder"})
        return settings | {"source": fingerprint(self.texts())}

    def texts(self) -> list[str]:
        """The source of the module, then the sources of the modules that it imports from its folder."""
        module = self.module()
        with self.as_recipe_error():
            helpers = [path for name, path in files_of(module).items() if name != module.__name__]
            return [inspect.getsource(module), *map(source, helpers)]

    def first_version_source(self) -> str:
        """The hash of the sources' text, which early runs recorded instead of syntax trees."""
        return hashlib.sha256("\0".join(text for text in self.texts() if text.strip()).encode()).hexdigest()

    @property
    def label(self) -> str:
        """The name after the colon."""
        return self.name.partition(":")[2]

    def module(self) -> ModuleType:
        """Import the module; raises a RecipeError if that fails."""
        name = self.name.partition(":")[0]
        hint = ": name the module without '.py'" if name.endswith(".py") else ""
        with as_recipe_error(f"'{name}' cannot be imported{hint}"):
            put_folder_first(self.folder, name)
            module = importlib.import_module(name)
            _imported_files.update(map(str, (getattr(module, "__file__", ""), *files_of(module).values())))
        return module

    def files(self) -> dict[str, Path]:
        """The files of the module and of the modules that it imports from its folder; none if installed."""
        return files_of(self.module())

    def load(self) -> Any:
        """The function or class; raises a RecipeError if the module does not have it."""
        target: Any = self.module()
        with self.as_recipe_error():
            for attribute in self.label.split("."):
                if not hasattr(target, attribute):
                    raise RecipeError(f"'{self.name}' is not there: the module has no '{attribute}'")
                target = getattr(target, attribute)
        return target

    def make(self, **arguments: Any) -> Any:
        """Call the function or class with these arguments and with `args`."""
        maker = self.load()
        with self.as_recipe_error():
            return maker(**arguments, **self.args)

    def as_recipe_error(self) -> AbstractContextManager[None]:
        """Report everything that the user's code raises as a RecipeError with the name of the code."""
        return as_recipe_error(f"'{self.name}' failed")


@contextmanager
def as_recipe_error(problem: str) -> Iterator[None]:
    """Report everything that foreign code raises, even SystemExit, as a RecipeError: problem and cause."""
    try:
        yield
    except (RecipeError, *NOT_ERRORS):
        raise
    except BaseException as error:
        raise RecipeError(f"{problem} ({error_text(error)})") from error


@contextmanager
def report_user_errors() -> Iterator[None]:
    """Report an error from a line of the user's code as a RecipeError with this line.

    Polyphony's own errors and a lack of memory are raised unchanged.
    """
    try:
        yield
    except NOT_ERRORS:
        raise
    except BaseException as error:
        line = user_line(error)
        is_ours = type(error).__module__.partition(".")[0] == "polyphony"
        if line is None or is_ours or out_of_memory(error):
            raise
        raise RecipeError(f"{line}, raised {error_text(error)}") from error


def user_line(error: BaseException) -> str | None:
    """ "mynets.py, line 12": the innermost line of the user's code in a traceback; None without one"""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _imported_files]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else None


def error_text(error: BaseException) -> str:
    """ "ValueError: too small" """
    return f"{type(error).__name__}: {first_line(error)}"


def own_tables(value: Any) -> Iterator[PythonTable]:
    """All tables of kind "python" in a table."""
    if isinstance(value, PythonTable):
        yield value
        return
    if isinstance(value, Settings | dict):
        value = tuple(dict(value).values())
    for part in value if isinstance(value, tuple) else ():
        yield from own_tables(part)


def keep_code(value: Any, folder: Path) -> None:
    """Copy the user's files that a table names, and the files that they import, into a folder."""
    for table in own_tables(value):
        copy_files(table.files(), folder)


def changed_code(value: Any, folder: Path) -> str | None:
    """The first definition that differs from its copy in a folder: "mynets.py, 'make'"; None without one."""
    changes = (changed_definition(table.files(), folder) for table in own_tables(value))
    return next((change for change in changes if change), None)


def own_code(value: Any) -> list[str]:
    """The names of the user's code in a table, without duplicates."""
    return list(dict.fromkeys(table.name for table in own_tables(value)))


def put_folder_first(folder: str, name: str) -> None:
    """Let the next import of this module use this folder first, even if a module of that name is imported.

    The same holds for the modules that it imports from the folder, unless an installed one has their name.
    """
    if not folder:
        return
    sys.path[:] = [folder, *(path for path in sys.path if path != folder)]
    importlib.invalidate_caches()
    names = {package for module in own_files(name, Path(folder)) for package in packages(module)}
    to_drop = {top(one) for one in names if is_from_elsewhere(one, Path(folder), top(one) == top(name))}
    for module in [module for module in sys.modules if top(module) in to_drop]:
        del sys.modules[module]


def is_from_elsewhere(name: str, folder: Path, count_installed: bool) -> bool:
    """Whether a module of this name is imported from another folder."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or Path(file) == file_of(name, folder):
        return False
    return count_installed or not is_installed(Path(file))


def top(name: str) -> str:
    """ "a.b.c" → "a" """
    return name.partition(".")[0]


def files_of(module: ModuleType) -> dict[str, Path]:
    """The files of a module and of the modules that it imports from its folder, by module name."""
    file = Path(getattr(module, "__file__", None) or LIBRARY)
    place = file.parent if file.name == "__init__.py" else file
    return own_files(module.__name__, place.parents[module.__name__.count(".")])


@contextmanager
def seeded(rng: torch.Generator | None) -> Iterator[None]:
    """Seed PyTorch's global generator from `rng` inside the block; restore its state at the end."""
    with torch.random.fork_rng(devices=[]):
        if rng is not None:
            torch.manual_seed(int(torch.randint(2**63 - 1, (), generator=rng)))
        yield
