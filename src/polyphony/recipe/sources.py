"""The user's own files: a module and what it imports from its folder, without running any of them."""

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

KEPT = "code"  # the folder of a run with the user's files as they were in training
LIBRARY = Path(os.__file__).parent  # Python's own
OURS = Path(polyphony.__file__).parent  # it may be installed in place


def own_files(name: str, folder: Path) -> dict[str, Path]:
    """The files of a module in a folder, of its packages, and of all that these import from there, by name.

    Empty if the module is missing or installed. Only import statements count, not calls that import or
    changes of sys.path.
    """
    found: dict[str, Path] = {}
    wanted = [] if is_installed(folder) or not file_of(name, folder) else [*packages(name)]
    while wanted:
        each = wanted.pop()
        if each not in found and (path := file_of(each, folder)):
            found[each] = path
            wanted += imports(each, path.name == "__init__.py", source(path), str(path))
    return dict(sorted(found.items()))


def packages(name: str) -> Iterator[str]:
    """ "a", "a.b" and, the module itself, "a.b.c" """
    return accumulate(name.split("."), "{}.{}".format)


def file_of(name: str, folder: Path) -> Path | None:
    """The file of a module in a folder, or None; a package comes first, as in Python."""
    place = folder.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in files if path.is_file()), None)


def is_installed(path: Path) -> bool:
    """Whether a path belongs to Python, to Polyphony or to an installed package."""
    known = path == OURS.parent or path.is_relative_to(OURS) or path.is_relative_to(LIBRARY)
    return known or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


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
    with warnings.catch_warnings(action="ignore"):  # they are shown when the module is imported
        tree = ast.parse(text, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return tree


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files by module name, placed so that Python can import them from the folder."""
    for name, path in files.items():
        place = folder / relative(name, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place != path:
            shutil.copyfile(path, place)


def relative(name: str, path: Path) -> Path:
    """The path of a module's file below the folder that Python imports it from."""
    return Path(*path.parts[-(1 + name.count(".") + (path.name == "__init__.py")) :])


def changed_definition(files: Mapping[str, Path], folder: Path) -> str | None:
    """The first function, class or statement that differs from a copy: "mynets.py, 'make'"; None if none."""
    for name, path in files.items():
        copy = folder / relative(name, path)
        before = definitions(source(copy)) if copy.is_file() else {}
        after = definitions(source(path))
        for each in sorted(before.keys() | after.keys()):
            if before.get(each) != after.get(each):
                return f"{relative(name, path)}, {each}"
    return None


def definitions(text: str) -> dict[str, str]:
    """The syntax tree of each function and class, and of all other statements together."""
    found: dict[str, str] = {}
    for node in syntax(text).body:
        name = f"'{node.name}'" if hasattr(node, "name") else "statements outside of functions"
        found[name] = found.get(name, "") + ast.dump(node)
    return found


@lru_cache
def imports(name: str, is_package: bool, text: str, path: str) -> tuple[str, ...]:
    """The modules that a source may import, with their packages; some names may not be modules."""
    found: list[str] = []
    for node in ast.walk(syntax(text, path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = name if is_package else name.rpartition(".")[0]
            with suppress(ImportError):  # beyond the topmost package
                base = resolve_name("." * node.level + (node.module or ""), package)
                found += [f"{base}.{alias.name}" for alias in node.names]
    return tuple(dict.fromkeys(each for whole in found for each in packages(whole)))
