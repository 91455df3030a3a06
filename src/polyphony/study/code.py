"""Which code decides a training: the definitions that it reaches by name, and their hash.

A definition is a function, class or constant of a module, a class as a whole. What a key of the recipe is set
to stands in the stage's key, and so the fields of a recipe's tables are no part of the code; neither are
comments, docstrings and what is said when something fails.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import polyphony
from polyphony.recipe.python import PythonTable

MODULES = (  # in which something decides weights; images have fingerprints of their own
    "training",
    "metrics.mixture",
    "distill",
    "metrics.diversity",
    "metrics.probabilities",
    "metrics.quality",
    "ensembles",
    "nn",
    "data.batches",
    "data.splits",
    "compute",
    "recipe.foreign",
    "recipe.forms",
    "recipe.libraries",
    "recipe.methods",
    "recipe.networks",
    "recipe.perturbations",
    "recipe.python",
    "recipe.training",
    "study.study",
    "study.jobs",
)
TABLES = "recipe."  # how the names of modules begin whose classes are tables

Place = tuple[str, str]  # a module's name below the package, and a definition's in it


@cache
def code_hash(*roots: type) -> str:
    """The hash of what these classes do, and of all that they lead to.

    A class outside the package, or a table that names code there, may lead anywhere in it.
    """
    package = Path(polyphony.__file__).parent
    places = [(each.__module__.removeprefix("polyphony."), each.__qualname__) for each in roots]
    found = reached(everything(package) if any(map(is_own, roots)) else places, package)
    return hashlib.sha256(
        "\n".join(f"{place}\n{found[place]}" for place in sorted(found)).encode()
    ).hexdigest()


def reached(roots: Iterable[Place], package: Path) -> dict[Place, str]:
    """What each definition does, as Python writes it, of all that the roots lead to by name."""
    found: dict[Place, str] = {}
    todo = list(roots)
    while todo:
        place = todo.pop()
        if place in found or not decides(place[0]):
            continue
        source = parsed(package, place[0])
        nodes = source.definitions[place[1]]
        found[place] = "\n".join(map(ast.unparse, nodes))
        todo += [there for node in nodes for there in source.names_in(node)]
    return found


def is_own(root: type) -> bool:
    """Whether a class is the user's own, or stands for something that is."""
    return issubclass(root, PythonTable) or not root.__module__.startswith("polyphony.")


def everything(package: Path) -> Iterator[Place]:
    """All definitions in modules that decide something."""
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        if decides(module):
            yield from ((module, name) for name in parsed(package, module).definitions)


def decides(module: str) -> bool:
    """Whether a module is one of those in which something decides weights."""
    return any(f"{module}.".startswith(f"{name}.") for name in MODULES)


class Source:
    """A module of the package: its definitions by name, and what stands behind the names that it imports."""

    def __init__(self, package: Path, name: str, text: str) -> None:
        self.package, self.name = package, name
        tree = Deciding(self.name).visit(ast.parse(text))
        self.definitions: dict[str, list[ast.stmt]] = {}
        for node in tree.body:
            for bound in bound_names(node):
                self.definitions.setdefault(bound, []).append(node)
        self.imports = {
            alias.asname or alias.name: (node.module.partition(".")[2], alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("polyphony")
            for alias in node.names
        }

    def names_in(self, node: ast.AST) -> Iterator[Place]:
        """The definitions that a node's names stand for."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                yield from self.behind(each.id)
            elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                module = ".".join(filter(None, self.imports.get(each.value.id, ("", ""))))
                if module and path_of(self.package, module).exists():
                    yield from parsed(self.package, module).behind(each.attr)

    def behind(self, name: str) -> Iterator[Place]:
        """The definition that a name of this module stands for, here or where it is imported from."""
        if name in self.definitions:
            yield self.name, name
        elif name in self.imports:
            module, original = self.imports[name]
            if path_of(self.package, module).exists():
                yield from parsed(self.package, module).behind(original)


@cache
def parsed(package: Path, module: str) -> Source:
    """A module, read once a process."""
    return Source(package, module, path_of(package, module).read_text(encoding="utf-8"))


def path_of(package: Path, module: str) -> Path:
    """The file of a module, which may be a package's own."""
    folder = package.joinpath(*filter(None, module.split(".")))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def bound_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


class Deciding(ast.NodeTransformer):
    """A source without what decides nothing: docstrings, words of errors, fields of a recipe's tables."""

    def __init__(self, module: str) -> None:
        self.of_tables = module.startswith(TABLES)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return ast.Raise(exc=None, cause=None)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        self.generic_visit(node)
        if self.of_tables:
            node.body = [each for each in node.body if not is_field(each)] or [ast.Pass()]
        return node


def is_field(node: ast.stmt) -> bool:
    """Whether a statement of a table's class says a key of it, and not something of the class."""
    return isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar")
