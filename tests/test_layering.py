from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyphony

PACKAGE = Path(polyphony.__file__).parent
LAYERS = (
    ("__main__",),
    ("cli",),
    ("serve",),
    ("sweep",),
    ("study", "report"),
    ("execute", "runs"),
    ("recipe", "analysis"),
    ("distill",),
    ("training",),
    ("ensembles",),
    ("metrics", "nn"),
    ("data",),
    ("compute",),
    ("_util",),
)
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
PARTS = sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")})


def imported(path: Path) -> Iterator[str]:
    """The parts of Polyphony that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("polyphony."))


@pytest.mark.parametrize("part", [part for part in PARTS if part != "__init__"])
def test_imports_point_to_higher_layers_only(part: str):
    folder = PACKAGE / part
    for path in folder.rglob("*.py") if folder.is_dir() else [PACKAGE / f"{part}.py"]:
        for other in set(imported(path)) - {part, "__version__"}:
            assert LAYER[part] < LAYER[other], f"{path.relative_to(PACKAGE)} imports {other}"


def test_a_student_is_loaded_and_asked_without_drawing_libraries():
    script = (
        "import sys, polyphony.serve, polyphony.serve.table;"
        " assert not {'matplotlib', 'jinja2', 'polyphony.report'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
