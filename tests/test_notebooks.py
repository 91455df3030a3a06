"""Every cell of the notebooks runs, with small settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
SETTINGS = """--set seeds=[0] --set student.epochs=1 --set "methods={ods={perturb='ods'}}" --workers 1"""
SMALL = {
    "tutorial": "EPOCHS, STUDENT_EPOCHS, IMAGES = 1, 1, 200",
    "own-networks": f"EPOCHS, IMAGES, SETTINGS = 3, 400, {SETTINGS!r}",
}
COMMAND = re.compile(r"^!(.*)$", re.MULTILINE)


def program(notebook: Path, settings: str) -> str:
    """The cells of a notebook as one program; `settings` follow the cell of the parameters."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    texts = ["".join(cell["source"]) for cell in cells]
    (at,) = [i for i, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", ())]
    texts.insert(at + 1, settings)
    return COMMAND.sub(lambda line: f"shell(f{line[1]!r})", "\n".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_cell_runs(name: str, tmp_path: Path, environment: dict[str, str]):
    shell = (
        "import shlex, subprocess, sys\n"
        "def shell(command):\n"
        "    _, *words = shlex.split(command)\n"
        "    subprocess.run([sys.executable, '-m', 'polyphony', *words], check=True)\n"
    )
    (tmp_path / "cells.py").write_text(shell + program(NOTEBOOKS / f"{name}.ipynb", SMALL[name]))
    command = [sys.executable, "-W", "error", "cells.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert name != "own-networks" or (tmp_path / "student.onnx").is_file()
