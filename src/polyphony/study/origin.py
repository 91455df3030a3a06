"""Where a result comes from: the code that trained it, the versions it ran with, the machine."""

from __future__ import annotations

import ast
import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polyphony
from polyphony.machine import cores, processor
from polyphony.parallel import group_from_environment
from polyphony.study.study import Study

NAMED = ("polyphony", "torch", "numpy", "scipy")  # packages whose versions are recorded
TRAINING = (  # what decides which weights a training ends with; its images have fingerprints of their own
    "train",
    "optimise",
    "tally",
    "losses",
    "graphs",
    "mixture",
    "distill",
    "perturb",
    "predictions",  # and three of metrics: which epoch is kept, and which step size is matched
    "metrics/diversity",
    "metrics/probabilities",
    "metrics/quality",
    "ensembles",
    "nn",
    "data/batches",
    "data/splits",
    "devices",
    "parallel",
    "seeds",
    "recipe/foreign",
    "recipe/forms",
    "recipe/libraries",
    "recipe/methods",
    "recipe/networks",
    "recipe/perturbations",
    "recipe/python",
    "recipe/schema",
    "recipe/sources",
    "recipe/table",
    "recipe/training",
    "study/study",
    "study/jobs",
)


@cache
def training_code() -> str:
    """The hash of the sources that decide a training, without their comments, docstrings and layout."""
    return hashlib.sha256("\n".join(statements(path) for path in training_sources()).encode()).hexdigest()


def training_sources() -> list[Path]:
    """The files that `TRAINING` names."""
    package = Path(polyphony.__file__).parent
    files = [(package / f"{name}.py", sorted((package / name).glob("*.py"))) for name in TRAINING]
    return [path for single, inside in files for path in inside or [single]]


def statements(path: Path) -> str:
    """What a source does, as Python writes it: the same however it is commented and laid out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


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
