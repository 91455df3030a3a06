"""The user's own files: a module and the modules that it imports from its folder. None of them is run."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path

import polyphony

CODE_FOLDER = "code"  # the folder of a run with a copy of the user's files at training time
LIBRARY = Path(os.__file__).parent  # Python's standard library
OURS = Path(polyphony.__file__).parent  # outside of site-packages in an editable installation


def own_files(name: str, folder: Path) -> dict[str, Path]:
    """The files of a module in a folder, of its packages, and of all modules that they import from there.

    The keys are module names. Empty if the module is missing or installed. Only import statements count:
    calls of import functions and changes of sys.path are ignored.
    """
    files: dict[str, Path] = {}
    todo = [] if is_installed(folder) or not file_of(name, folder) else [*packages(name)]
    while todo:
        module = todo.pop()
        if module not in files and (path := file_of(module, folder)):
            files[module] = path
            todo += imports(module, path.name == "__init__.py", source(path), str(path))
    return dict(sorted(files.items()))


def packages(name: str) -> Iterator[str]:
    """ "a.b.c" → "a", "a.b", "a.b.c" """
    return accumulate(name.split("."), "{}.{}".format)


def file_of(name: str, folder: Path) -> Path | None:
    """The file of a module in a folder, or None; a package comes first, as in Python."""
    place = folder.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in files if path.is_file()), None)


def is_installed(path: Path) -> bool:
    """Whether a path belongs to Python, to Polyphony or to an installed package."""
    ours = path == OURS.parent or path.is_relative_to(OURS)
    in_site_packages = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return ours or in_site_packages or path.is_relative_to(LIBRARY)


def source(path: Path) -> str:
    """A module's text in its declared encoding."""
    with tokenize.open(path) as stream:
        return stream.read()


def fingerprint(texts: Iterable[str]) -> str:
    """SHA-256 of the syntax trees of sources: comments, layout and docstrings do not count."""
    trees = (syntax(text) for text in texts if text.strip())
    return hashlib.sha256("\0".join(ast.dump(tree) for tree in trees).encode()).hexdigest()


def syntax(text: str, path: str = "<unknown>") -> ast.Module:
    """The syntax tree of a source without its docstrings."""
    with warnings.catch_warnings(action="ignore"):  # Python shows them when it imports the module
        tree = ast.parse(text, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return tree


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files, by module name, so that Python can import them from the folder."""
    for name, path in files.items():
        copy = folder / relative(name, path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy != path:
            shutil.copyfile(path, copy)


def relative(name: str, path: Path) -> Path:
    """The path of a module's file below the folder that Python imports it from."""
    return Path(*path.parts[-(1 + name.count(".") + (path.name == "__init__.py")) :])


def changed_definition(files: Mapping[str, Path], folder: Path) -> str | None:
    """The first function, class or statement that differs from the copy in a folder: "mynets.py, 'make'".

    None if nothing differs.
    """
    for name, path in files.items():
        copy = folder / relative(name, path)
        before = definitions(source(copy)) if copy.is_file() else {}
        after = definitions(source(path))
        for definition in sorted(before.keys() | after.keys()):
            if before.get(definition) != after.get(definition):
                return f"{relative(name, path)}, {definition}"
    return None


def definitions(text: str) -> dict[str, str]:
    """The syntax tree of each function and class, and of all other statements together."""
    trees: dict[str, str] = {}
    for node in syntax(text).body:
        name = f"'{node.name}'" if hasattr(node, "name") else "statements outside of functions"
        trees[name] = trees.get(name, "") + ast.dump(node)
    return trees


@lru_cache
def imports(name: str, is_package: bool, text: str, path: str) -> tuple[str, ...]:
    """The modules that a source may import, with their packages; some names may not be modules."""
    modules: list[str] = []
    for node in ast.walk(syntax(text, path)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = name if is_package else name.rpartition(".")[0]
            with suppress(ImportError):  # beyond the topmost package
                base = resolve_name("." * node.level + (node.module or ""), package)
                modules += [f"{base}.{alias.name}" for alias in node.names]
    return tuple(dict.fromkeys(package for module in modules for package in packages(module)))
