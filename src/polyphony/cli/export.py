"""The verbs that hand a student to others: export, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.options import DataRoot, Method, RunFolder, Seed, output

Licence = Annotated[str, Parameter(help="Licence to store with it, for example MIT.")]


def export(
    folder: RunFolder,
    method: Method = None,
    /,
    *,
    to: Annotated[Path, output("File to write: NAME.onnx, or NAME.pt2 for PyTorch.")],
    seed: Seed = None,
    pixels: Annotated[
        Literal["uint8", "float32"], Parameter(help="Input of the file: uint8 levels, or float32 in [0, 1].")
    ] = "uint8",
    licence: Licence = "",
    data: DataRoot = None,
) -> None:
    """Write a student as one ONNX or PyTorch file that needs no Polyphony, for any batch size.

    The file is compared with the student on test images before it is written.
    """
    from polyphony.serve import export_student, load_student
    from polyphony.study import open_study

    student = load_student(folder, method, seed).licensed(licence)
    export_student(student, to, open_study(folder, data, "cpu").data().test.images, pixels)
    terminal.line(f"{to}: {student.words}, as in Python on test images.")


def pack(
    folder: RunFolder,
    method: Method = None,
    /,
    *,
    to: Annotated[Path, output("Folder to write.")],
    seed: Seed = None,
    licence: Licence = "",
    data: DataRoot = None,
) -> None:
    """Write a student as a model folder for the Hugging Face Hub ('hf upload' publishes it).

    It holds config.json, model.safetensors, model.onnx, a model card (README.md) and your own code, if any.
    """
    from polyphony._util.text import listed
    from polyphony.serve.pack import pack_student
    from polyphony.study import open_study

    images = open_study(folder, data, "cpu").data().test.images
    student = pack_student(folder, method, seed, to, images, licence)
    code = sorted(str(path.relative_to(to)) for path in to.rglob("*.py"))
    terminal.line(f"{to}: {student.words}{f', with its code, {listed(code)}' if code else ''}.")
