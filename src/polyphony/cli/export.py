"""The verb that hands a student to other programs: export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.predict import Seed
from polyphony.cli.study import DataRoot

if TYPE_CHECKING:
    from torch import Tensor

    from polyphony.serve import Student

Licence = Annotated[str, Parameter(help="Under which others may use it, for example MIT; kept with it.")]


def export(
    folder: Path,
    method: str,
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

    Parameters
    ----------
    folder
        A run folder, for example runs/digits.
    method
        Whose student.
    """
    from polyphony.serve.export import export_student

    student, images = student_and_images(folder, method, seed, licence, data)
    export_student(student, to, images, pixels)
    terminal.line(f"{to}: {student.words}, as in Python on test images.")


def student_and_images(
    folder: Path, method: str, seed: int | None, licence: str, data: Path | None
) -> tuple[Student, Tensor]:
    """A run's student under a licence, and the run's test images."""
    from polyphony.serve import load_student
    from polyphony.study import open_study

    student = load_student(folder, method, seed)
    return student.licensed(licence), open_study(folder, data, "cpu").splits.test.images
