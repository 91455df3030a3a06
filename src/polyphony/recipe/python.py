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
# Files of the user's modules that this process has imported; like sys.modules, it only grows by imports.
_files: set[str] = set()


class PythonTable(Settings):
    """An object of the user's, by the name of its maker: "module:function" or "module:Class".

    The module is looked for in the recipe's folder first. Reading a recipe does not import it; building does.
    """

    kind: Literal["python"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """"module:function" or "module:Class"; the module is looked for beside the recipe first."""
    args: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Arguments of the function or class."""
    folder: Annotated[str, Field(validate_default=True)] = ""
    """Folder of the module (default: the recipe's)."""

    @field_validator("folder")
    @classmethod
    def _is_the_recipes(cls, folder: str, info: ValidationInfo) -> str:
        return folder or str((info.context or {}).get("folder", ""))

    def spec(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """The settings; instead of the folder, the hash of the syntax trees of the module and its helpers."""
        own = super().spec(type(self).model_fields.keys() - {"folder"})
        return own | {"source": fingerprint(self.texts())}

    def texts(self) -> list[str]:
        """The source of the module, then those of the modules that it imports from its folder."""
        module = self.module()
        with self.explained():
            helpers = [path for name, path in files_of(module).items() if name != module.__name__]
            return [inspect.getsource(module), *map(source, helpers)]

    def first_version_source(self) -> str:
        """The hash of the sources' text, which version 0.1.0 recorded instead of syntax trees."""
        return hashlib.sha256("\0".join(text for text in self.texts() if text.strip()).encode()).hexdigest()

    @property
    def label(self) -> str:
        """The name after the colon."""
        return self.name.partition(":")[2]

    def module(self) -> ModuleType:
        name = self.name.partition(":")[0]
        hint = ": name the module without '.py'" if name.endswith(".py") else ""
        with explained(f"'{name}' cannot be imported{hint}"):
            prefer(self.folder, name)
            module = importlib.import_module(name)
            _files.update(map(str, (getattr(module, "__file__", ""), *files_of(module).values())))
        return module

    def files(self) -> dict[str, Path]:
        """The files of the module and of those it imports from its folder; none if it is installed."""
        return files_of(self.module())

    def load(self) -> Any:
        """The object of that name."""
        found: Any = self.module()
        with self.explained():
            for attribute in self.label.split("."):
                if not hasattr(found, attribute):
                    raise RecipeError(f"'{self.name}' is not there: the module has no '{attribute}'")
                found = getattr(found, attribute)
        return found

    def make(self, **given: Any) -> Any:
        """Call the maker with its arguments and these."""
        maker = self.load()
        with self.explained():
            return maker(**given, **self.args)

    def explained(self) -> AbstractContextManager[None]:
        """Report everything that the user's code raises as a RecipeError that names it."""
        return explained(f"'{self.name}' failed")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Report everything that foreign code raises, even an exit, as a RecipeError: what failed, and why."""
    try:
        yield
    except (RecipeError, *NOT_ERRORS):
        raise
    except BaseException as error:
        raise RecipeError(f"{what} ({error_text(error)})") from error


@contextmanager
def own_faults_named() -> Iterator[None]:
    """Report errors from the user's code as a RecipeError with the line, whoever called it.

    Errors of Polyphony, and a lack of memory, are raised as they are.
    """
    try:
        yield
    except NOT_ERRORS:
        raise
    except BaseException as error:
        place = own_place(error)
        ours = type(error).__module__.partition(".")[0] == "polyphony"
        if place is None or ours or out_of_memory(error):
            raise
        raise RecipeError(f"{place} raised {error_text(error)}") from error


def own_place(error: BaseException) -> str | None:
    """ "mynets.py, line 12": the innermost line of the user's code in a traceback, if there is one"""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _files]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}," if frames else None


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
    for each in value if isinstance(value, tuple) else ():
        yield from own_tables(each)


def keep_code(value: Any, folder: Path) -> None:
    """Copy the user's files that a table names, with those that they import, into a folder."""
    for table in own_tables(value):
        copy_files(table.files(), folder)


def changed_code(value: Any, folder: Path) -> str | None:
    """The first definition that differs from its copy in a folder: "mynets.py, 'make'"; None if none does."""
    found = (changed_definition(table.files(), folder) for table in own_tables(value))
    return next((words for words in found if words), None)


def own_code(value: Any) -> list[str]:
    """The names of the user's code in a table, each once."""
    return list(dict.fromkeys(table.name for table in own_tables(value)))


def prefer(folder: str, name: str) -> None:
    """Import a module from this folder first, even if another one of that name is imported already.

    The same holds for modules that it imports from there, except for names of installed ones.
    """
    if not folder:
        return
    sys.path[:] = [folder, *(path for path in sys.path if path != folder)]
    importlib.invalidate_caches()
    parts = {part for each in own_files(name, Path(folder)) for part in packages(each)}
    others = {top(each) for each in parts if is_from_elsewhere(each, Path(folder), top(each) == top(name))}
    for each in [each for each in sys.modules if top(each) in others]:
        del sys.modules[each]


def is_from_elsewhere(name: str, folder: Path, installed: bool) -> bool:
    """Whether a module of this name is imported from another place; libraries count only if `installed`."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or Path(file) == file_of(name, folder):
        return False
    return installed or not is_installed(Path(file))


def top(name: str) -> str:
    return name.partition(".")[0]


def files_of(module: ModuleType) -> dict[str, Path]:
    """The files of a module and of those that it imports from its folder, by name."""
    file = Path(getattr(module, "__file__", None) or LIBRARY)
    place = file.parent if file.name == "__init__.py" else file
    return own_files(module.__name__, place.parents[module.__name__.count(".")])


@contextmanager
def seeded(rng: torch.Generator | None) -> Iterator[None]:
    """Let code that draws from PyTorch's global generator draw from `rng`; the global state is restored."""
    with torch.random.fork_rng(devices=[]):
        if rng is not None:
            torch.manual_seed(int(torch.randint(2**63 - 1, (), generator=rng)))
        yield
