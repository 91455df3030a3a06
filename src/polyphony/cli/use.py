"""The verbs that use a trained student: predict, export, pack."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators
from rich.cells import cell_len, set_cell_size

from polyphony._util.text import printable
from polyphony.cli import terminal
from polyphony.cli.options import (
    DataRoot,
    Device,
    Method,
    RunFolder,
    Seed,
    UsageError,
    file_option,
    find_device,
    flag,
    output,
)

if TYPE_CHECKING:
    from torch import Tensor

    from polyphony.runs.samples import Samples
    from polyphony.serve import Student
    from polyphony.serve.graph import InputType
    from polyphony.serve.int8 import Int8
    from polyphony.serve.table import Answered

Licence = Annotated[str, Parameter(help="Licence to store with it, for example MIT.")]
Force = Annotated[bool, flag("Replace an existing file or packed student.")]
Allow = Annotated[
    float | None,
    Parameter(
        validator=validators.Number(gte=0),
        help="How much int8 may raise the calibrated NLL on test images (default: 0.01).",
    ),
]
MOST_FOLDED = 500  # rows; in a longer table, long cells are not folded


def predict(
    folder: RunFolder,
    /,
    *images: Annotated[Path, Parameter(required=True, help="Pictures, or folders of pictures.")],
    method: Method = None,
    seed: Seed = None,
    coverage: Annotated[
        float | None,
        Parameter(help="Share of images that the model decides, for example 0.8; a person decides the rest."),
    ] = None,
    sets: Annotated[
        float | None,
        Parameter(help="Also print sets of classes that hold the true one with this probability, say 0.9."),
    ] = None,
    sort: Annotated[bool, flag("Sort by entropy, the most uncertain first.")] = False,
    as_json: Annotated[bool, flag("Print JSON, with the probability of every class.", "--json")] = False,
    as_csv: Annotated[bool, flag("Print CSV.", "--csv")] = False,
    page: Annotated[
        Path | None, file_option("html", "Also write an HTML page with the pictures and answers.")
    ] = None,
    code: Annotated[bool, flag("Allow a packed student to run its own code.")] = False,
    device: Device = "auto",
) -> None:
    """Classify pictures with a student: class, calibrated confidence, uncertainties."""
    if as_json and as_csv:
        raise UsageError("give --json or --csv, not both")
    from polyphony.runs.store import write_atomically
    from polyphony.serve import load_student
    from polyphony.serve.table import contact_sheet

    if code:
        sys.path.append("")  # the code may be in the current folder instead of the packed one
    student = load_student(folder, method, seed, device=find_device(device), code=code)
    rows, pictures, probabilities = ask(student, images, sort, coverage, sets)
    terminal.note(f"Answers by {student.words}{f': {student.choice}' if student.choice else ''}.")
    if page:
        write_atomically(page, contact_sheet(student, rows, pictures).encode())
        terminal.note(f"Page: {page}")
    if as_json:
        terminal.plain(json_of(rows, student.classes, probabilities.tolist()))
    else:
        show(rows, as_csv)


def ask(
    student: Student, images: Sequence[Path], sort: bool, coverage: float | None, sets: float | None
) -> tuple[list[Answered], Tensor, Tensor]:
    """Rows, pictures and probabilities of every class, sorted by entropy if `sort` is set."""
    from polyphony.serve.pictures import find_pictures, read_pictures
    from polyphony.serve.table import answered

    files = find_pictures(images)
    pictures = read_pictures(files, student.description.shape, student.description.resize)
    answers = student.predict(pictures)
    order = answers.entropy.argsort(descending=True, stable=True).tolist() if sort else [*range(len(files))]
    rows = answered([printable(file) for file in files], student.classes, answers, coverage, sets)
    return [rows[i] for i in order], pictures[order], answers.probabilities[order]


def json_of(rows: list[Answered], classes: Sequence[str], probabilities: list[list[float]]) -> str:
    """The answers as JSON, with the probability of every class."""
    answers = []
    for row, numbers in zip(rows, probabilities, strict=True):
        columns = {name: value for name, value in asdict(row).items() if value is not None}
        answers.append(columns | {"probabilities": dict(zip(classes, numbers, strict=True))})
    return json.dumps(answers, indent=1)


def show(rows: list[Answered], as_csv: bool) -> None:
    """Print a table, or CSV. Only a short table folds long cells: that is slow for thousands of rows."""
    from polyphony.runs.rows import csv_text
    from polyphony.serve.table import shown_headings

    columns = shown_headings(rows)
    headings, values = [*columns.values()], [[getattr(row, name) for name in columns] for row in rows]
    if as_csv:
        terminal.plain(csv_text(list(columns), (map(csv_cell, row) for row in values)))
        return
    texts = [list(map(table_cell, columns, row)) for row in values]
    if len(rows) > MOST_FOLDED:
        terminal.plain(aligned([headings, *texts]))
    else:
        terminal.show_table(headings, texts)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines of text; each column is as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows)


def csv_cell(value: str | float | tuple[str, ...]) -> str | float:
    """A cell of a CSV file; the classes of a set are separated by semicolons."""
    return "; ".join(value) if isinstance(value, tuple) else value


def table_cell(name: str, value: str | float | tuple[str, ...]) -> str:
    """A cell of the table for people."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, float):
        return f"{value:.1%}" if name == "confidence" else f"{value:.3f}"
    return value


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
        bool,
        flag("Compute in int8, calibrated on training images: faster. The file holds each member's weights."),
    ] = False,
    allow: Allow = None,
    sets: Annotated[
        float | None,
        Parameter(help="Add an output `set`: classes that hold the true one with this probability, say 0.9."),
    ] = None,
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
    refuse_allow_alone(allow, int8)
    refuse_suffix(to, int8)
    refuse_existing(to, force)
    from polyphony.serve import export_student, load_student
    from polyphony.serve.load import load_samples

    student = load_student(folder, method, seed).with_description(licence=licence)
    student = student if sets is None else student.with_sets(sets)
    show_choice(student)
    samples = load_samples(folder, data)
    if int8:
        student = export_int8(student, to, samples, pixels, allow)
    else:
        export_student(student, to, samples.test.images, pixels, half)
    size = f"{to.stat().st_size / 1e6:.1f} MB"
    terminal.line(f"{to}: {student.words}, {'' if int8 else 'as in Python on test images, '}{size}.")
    warn_if_poor(folder, student.description.method)


def export_int8(
    student: Student, to: Path, samples: Samples, pixels: InputType, allow: float | None
) -> Student:
    """Print how int8 changes the scores, and write the file; returns the student with its temperature."""
    from polyphony.serve.int8 import ALLOWED, quantise_student

    quantised = quantise_student(student, samples, pixels)
    show_int8(quantised)
    quantised.write(to, ALLOWED if allow is None else allow)
    return student.with_description(temperature=quantised.after.temperature)


def pack(
    folder: RunFolder,
    method: Method = None,
    /,
    *,
    to: Annotated[Path, output("Folder to write.")],
    seed: Seed = None,
    int8: Annotated[bool, flag("Add the student in int8, model-int8.onnx.")] = False,
    allow: Allow = None,
    licence: Licence = "",
    force: Force = False,
    data: DataRoot = None,
) -> None:
    """Write a student as a model folder for the Hugging Face Hub ('hf upload' publishes it).

    It holds config.json, model.safetensors, model.onnx, a model card (README.md) and your own code, if any.
    """
    refuse_allow_alone(allow, int8)
    refuse_existing(to, force)
    from polyphony._util.text import listed
    from polyphony.serve.int8 import ALLOWED
    from polyphony.serve.load import load_samples
    from polyphony.serve.pack import Packing, pack_student

    packing = Packing(licence, int8, ALLOWED if allow is None else allow, force)
    student, quantised = pack_student(folder, method, seed, to, load_samples(folder, data), packing)
    show_choice(student)
    if quantised:
        show_int8(quantised)
    code = sorted(str(path.relative_to(to)) for path in to.rglob("*.py"))
    terminal.line(f"{to}: {student.words}{f', with its code, {listed(code)}' if code else ''}.")
    warn_if_poor(folder, student.description.method)


def refuse_allow_alone(allow: float | None, int8: bool) -> None:
    """Raise a UsageError for --allow without --int8."""
    if allow is not None and not int8:
        raise UsageError("--allow needs --int8: give both, or neither")


def refuse_suffix(to: Path, int8: bool) -> None:
    """Raise a UsageError if the ending of a file's name does not fit its format."""
    if int8 and to.suffix != ".onnx":
        raise UsageError(f"int8 files are ONNX files: give --out a name that ends in .onnx, not {to.name}")
    if to.suffix not in (".onnx", ".pt2"):
        raise UsageError(f"{to} must end in .onnx or .pt2: give --out another name")


def refuse_existing(to: Path, force: bool) -> None:
    """Raise a UsageError if a file exists and --force is not set."""
    if to.exists() and not force:
        raise UsageError(f"{to} exists: give --out another name, or --force to replace it")


def show_choice(student: Student) -> None:
    """Print why this student was chosen, if the user did not name it."""
    if student.choice:
        terminal.note(
            f"Chosen: {student.description.method}, seed {student.description.seed}: {student.choice}."
        )


def warn_if_poor(folder: Path, method: str) -> None:
    """Repeat the page's warnings about a method: worse than one teacher, or members almost alike."""
    from polyphony.report.verdict import warnings_of
    from polyphony.runs.run import Run
    from polyphony.runs.store import StoreError

    with suppress(StoreError):  # the student is written: a damaged file of the run is no reason to fail
        for warning in warnings_of(Run.open(folder), [method]):
            terminal.line(f"Warning: {warning}", "yellow")


def show_int8(quantised: Int8) -> None:
    """Print how int8 changes the scores on test images."""
    from polyphony.serve.int8 import may_be_slow

    before, after = quantised.before, quantised.after
    rows = (
        ("accuracy", f"{before.acc:.2%}", f"{after.acc:.2%}"),
        ("NLL", f"{before.nll:.4f}", f"{after.nll:.4f}"),
        ("ECE", f"{before.ece:.4f}", f"{after.ece:.4f}"),
        ("temperature", f"{before.temperature:.3f}", f"{after.temperature:.3f}"),
    )
    terminal.show_table(("on test images, calibrated", "float32", "int8"), rows)
    ranks = ""
    if quantised.rank_correlation is not None:
        correlation = f"{quantised.rank_correlation:.3f}"
        ranks = f" Rank correlation of the mutual information with float32: {correlation}."
    terminal.line(f"{quantised.images:,} test images; left in float32: {quantised.in_float}.{ranks}")
    if may_be_slow():
        terminal.line("This processor has no VNNI instructions: here int8 may be slower than float32.")
