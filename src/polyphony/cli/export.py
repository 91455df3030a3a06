"""The verbs that hand a student to others: export, pack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from polyphony.cli import terminal
from polyphony.cli.options import DataRoot, Method, RunFolder, Seed, flag, output
from polyphony.cli.where import UsageError

if TYPE_CHECKING:
    from polyphony.serve import Student
    from polyphony.serve.int8 import Int8

Licence = Annotated[str, Parameter(help="Licence to store with it, for example MIT.")]
Force = Annotated[bool, flag("Replace what is there.")]
Allow = Annotated[
    float, Parameter(help="How much int8 may raise the calibrated NLL on test images (default: 0.01).")
]


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
    half: Annotated[bool, flag("Store weights as float16: half the bytes, the same speed.")] = False,
    int8: Annotated[
        bool, flag("Compute in int8, calibrated on training images: smaller and faster.")
    ] = False,
    allow: Allow = 0.01,
    licence: Licence = "",
    force: Force = False,
    data: DataRoot = None,
) -> None:
    """Write a student as one ONNX or PyTorch file that needs no Polyphony, for any batch size.

    The file is compared with the student on test images before it is written. The run keeps a few images for
    this; with --data all images of the data set are used.
    """
    if half and int8:
        raise UsageError("give --half or --int8, not both")
    if int8 and to.suffix != ".onnx":
        raise UsageError(f"int8 files are ONNX files: give --out a name that ends in .onnx, not {to.name}")
    refuse_existing(to, force)
    from polyphony.serve import export_student, load_student
    from polyphony.serve.load import load_samples

    student = load_student(folder, method, seed).licensed(licence)
    show_choice(student)
    samples = load_samples(folder, data)
    if int8:
        from polyphony.serve.int8 import quantise_student

        quantised = quantise_student(student, samples, pixels)
        show_int8(quantised)
        quantised.write(to, allow)
    else:
        export_student(student, to, samples.test.images, pixels, half)
    size = f"{to.stat().st_size / 1e6:.1f} MB"
    terminal.line(f"{to}: {student.words}, {'' if int8 else 'as in Python on test images, '}{size}.")


def pack(
    folder: RunFolder,
    method: Method = None,
    /,
    *,
    to: Annotated[Path, output("Folder to write.")],
    seed: Seed = None,
    int8: Annotated[bool, flag("Add the student in int8, model-int8.onnx.")] = False,
    allow: Allow = 0.01,
    licence: Licence = "",
    force: Force = False,
    data: DataRoot = None,
) -> None:
    """Write a student as a model folder for the Hugging Face Hub ('hf upload' publishes it).

    It holds config.json, model.safetensors, model.onnx, a model card (README.md) and your own code, if any.
    """
    refuse_existing(to, force)
    from polyphony._util.text import listed
    from polyphony.serve.load import load_samples
    from polyphony.serve.pack import Packing, pack_student

    packing = Packing(licence, int8, allow, force)
    student, quantised = pack_student(folder, method, seed, to, load_samples(folder, data), packing)
    show_choice(student)
    if quantised:
        show_int8(quantised)
    code = sorted(str(path.relative_to(to)) for path in to.rglob("*.py"))
    terminal.line(f"{to}: {student.words}{f', with its code, {listed(code)}' if code else ''}.")


def refuse_existing(to: Path, force: bool) -> None:
    """Raise a UsageError where something would be replaced."""
    if to.exists() and not force:
        raise UsageError(f"{to} is there already: give --out another name, or --force to replace it")


def show_choice(student: Student) -> None:
    """Say why this student was chosen, if nobody named it."""
    if student.choice:
        terminal.note(
            f"Chosen: {student.description.method}, seed {student.description.seed}: {student.choice}."
        )


def show_int8(made: Int8) -> None:
    """What int8 changes, on test images."""
    from rich.table import Table

    from polyphony.serve.int8 import may_be_slow

    table = Table("on test images, calibrated", "float32", "int8")
    for name, form in {"acc": "{:.2%}", "nll": "{:.4f}", "ece": "{:.4f}", "temperature": "{:.3f}"}.items():
        sides = (form.format(getattr(side, name)) for side in (made.before, made.after))
        table.add_row({"acc": "accuracy", "nll": "NLL", "ece": "ECE"}.get(name, name), *sides)
    terminal.console.print(table)
    alike = made.rank_correlation
    ranks = "" if alike is None else f" Rank correlation of the mutual information with float32: {alike:.3f}."
    terminal.line(f"{made.images:,} test images; left in float32: {made.in_float}.{ranks}")
    if may_be_slow():
        terminal.line("This processor has no VNNI instructions: here int8 may be slower than float32.")
