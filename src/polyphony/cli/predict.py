"""The verb that asks a trained student: predict."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from rich.table import Column, Table
from rich.text import Text

from polyphony._util.text import printable
from polyphony.cli import terminal
from polyphony.cli.options import Method, RunFolder, Seed, flag
from polyphony.cli.where import Device, UsageError, chosen

if TYPE_CHECKING:
    from torch import Tensor

    from polyphony.serve import Student
    from polyphony.serve.table import Answered


def predict(
    folder: RunFolder,
    /,
    *images: Annotated[Path, Parameter(required=True, help="Pictures, or folders of pictures.")],
    method: Method = None,
    seed: Seed = None,
    coverage: Annotated[
        float | None,
        Parameter(help="Share of images that the model decides, for example 0.8; marks the others: person."),
    ] = None,
    sets: Annotated[
        float | None,
        Parameter(help="Also print sets of classes that hold the true one this often, for example 0.9."),
    ] = None,
    sort: Annotated[bool, flag("Sort by entropy, the most uncertain first.")] = False,
    as_json: Annotated[bool, flag("Print JSON, with the probability of every class.", "--json")] = False,
    as_csv: Annotated[bool, flag("Print CSV.", "--csv")] = False,
    page: Annotated[
        Path | None,
        Parameter(
            validator=validators.Path(ext="html"),
            help="Also write an HTML page of the answers.",
        ),
    ] = None,
    code: Annotated[bool, flag("Allow a packed student to run its own code.")] = False,
    device: Device = "auto",
) -> None:
    """Classify pictures with a student: class, calibrated confidence, uncertainties."""
    if as_json and as_csv:
        raise UsageError("give --json or --csv, not both")
    from polyphony.runs.store import write_whole
    from polyphony.serve import load_student
    from polyphony.serve.table import contact_sheet

    if code:
        sys.path.append("")  # which may lie in this folder, where it is not in the packed one
    student = load_student(folder, method, seed, device=chosen(device), code=code)
    rows, pictures, probabilities = ask(student, images, sort, coverage, sets)
    terminal.note(f"Asked {student.words}{f': {student.choice}' if student.choice else ''}.")
    if page:
        write_whole(page, contact_sheet(student, rows, pictures).encode())
        terminal.note(f"Page: {page}")
    if as_json:
        terminal.plain(json_of(rows, student.classes, probabilities.tolist()))
    else:
        show(rows, as_csv)


def ask(
    student: Student, images: Sequence[Path], sort: bool, coverage: float | None, sets: float | None
) -> tuple[list[Answered], Tensor, Tensor]:
    """The answers, the pictures and every class's probability, in the order in which they are shown."""
    from polyphony.serve.pictures import find_pictures, read_pictures
    from polyphony.serve.table import answered

    files = find_pictures(images)
    pictures = read_pictures(files, student.description.shape, student.description.resize)
    answers = student.predict(pictures)
    order = answers.entropy.argsort(descending=True, stable=True).tolist() if sort else [*range(len(files))]
    rows = answered([printable(file) for file in files], student.classes, answers, coverage, sets)
    return [rows[i] for i in order], pictures[order], answers.probabilities[order]


def json_of(rows: list[Answered], classes: Sequence[str], probabilities: list[list[float]]) -> str:
    """The answers as JSON, with every class's probability."""
    named = (dict(zip(classes, each, strict=True)) for each in probabilities)
    told = ({name: value for name, value in asdict(row).items() if value is not None} for row in rows)
    found = [row | {"probabilities": each} for row, each in zip(told, named, strict=True)]
    return json.dumps(found, indent=1)


def show(rows: list[Answered], as_csv: bool) -> None:
    """A table for people, or CSV."""
    from polyphony.runs.rows import csv_text
    from polyphony.serve.table import shown_headings

    shown = shown_headings(rows)
    if as_csv:
        cells = ([exact(getattr(row, name)) for name in shown] for row in rows)
        terminal.plain(csv_text(list(shown), cells))
        return
    table = Table(*(Column(heading, overflow="fold") for heading in shown.values()))
    for row in rows:
        table.add_row(*(short(name, getattr(row, name)) for name in shown))
    terminal.console.print(table)


def exact(value: str | float | tuple[str, ...]) -> str | float:
    """A cell of a CSV file; of a set the classes, with semicolons."""
    return "; ".join(value) if isinstance(value, tuple) else value


def short(name: str, value: str | float | tuple[str, ...]) -> Text:
    """A cell of the table for people."""
    if isinstance(value, tuple):
        return Text(", ".join(value) or "none")
    if isinstance(value, float):
        return Text(f"{value:.1%}" if name == "confidence" else f"{value:.3f}")
    return Text(value)
