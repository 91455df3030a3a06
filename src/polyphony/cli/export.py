"""The verbs that hand a student to others: export, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.options import DataRoot, RunFolder, Seed

Whose = Annotated[str, Parameter(help="Whose student.")]
Licence = Annotated[str, Parameter(help="Under which others may use it, for example MIT; kept with it.")]


def export(
    folder: RunFolder,
    method: Whose,
    /,
    *,
    to: Annotated[Path, Parameter(help="The file: NAME.onnx, or NAME.pt2 for PyTorch.")],
    seed: Seed = None,
    pixels: Annotated[
        Literal["uint8", "float32"], Parameter(help="What it takes: levels, or numbers in [0, 1].")
    ] = "uint8",
    licence: Licence = "",
    data: DataRoot = None,
) -> None:
    """Write a student as one file that answers without Polyphony, for any number of images at once.

    It is compared with the student on test images before it is written.
    """
    from polyphony.serve import export_student, load_student
    from polyphony.study import open_study

    student = load_student(folder, method, seed).licensed(licence)
    export_student(student, to, open_study(folder, data, "cpu").splits.test.images, pixels)
    terminal.line(f"{to}: {student.words}, as in Python on test images.")


def pack(
    folder: RunFolder,
    method: Whose,
    /,
    *,
    to: Annotated[Path, Parameter(help="The folder to make.")],
    seed: Seed = None,
    licence: Licence = "",
    data: DataRoot = None,
) -> None:
    """Make a model folder of a student as the Hugging Face Hub has it; 'hf upload' publishes it.

    It holds config.json, model.safetensors, model.onnx, a model card, README.md, and your own code, if any.
    """
    from polyphony._util.text import listed
    from polyphony.serve.pack import pack_student
    from polyphony.study import open_study

    images = open_study(folder, data, "cpu").splits.test.images
    student = pack_student(folder, method, seed, to, images, licence)
    code = sorted(str(path.relative_to(to)) for path in to.rglob("*.py"))
    terminal.line(f"{to}: {student.words}{f', with its code, {listed(code)}' if code else ''}.")
