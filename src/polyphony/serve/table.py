"""Answers to single images: rows of a table, and a page with the pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Any

from PIL import Image
from torch import Tensor

from polyphony.runs.rows import headings
from polyphony.serve.student import Answers, Student

DECIDED_BY = {True: "model", False: "person"}
MOST_SHOWN = 500  # pictures on a page: they are part of its file


@dataclass(frozen=True)
class Answered:
    """A student's answer to one image; uncertainties in nats."""

    image: Annotated[str, "image"]
    label: Annotated[str, "class"]
    confidence: Annotated[float, "confidence"]
    entropy: Annotated[float, "entropy"]
    mutual_information: Annotated[float, "mutual information"]
    by: Annotated[str | None, "decided by"] = None  # "model" or "person"; None without a coverage
    set: Annotated[tuple[str, ...] | None, "possible classes"] = None  # the prediction set


def answered(
    names: Sequence[str],
    classes: Sequence[str],
    answers: Answers,
    coverage: float | None = None,
    sets: float | None = None,
) -> list[Answered]:
    """A row for each image, in order. `coverage` adds who decides, `sets` the classes of a prediction set."""
    labels = [classes[label] for label in answers.labels.tolist()]
    numbers = (answers.confidence, answers.entropy, answers.mutual_information)
    columns: list[Sequence[Any]] = [names, labels, *(column.tolist() for column in numbers)]
    nothing = [None] * len(names)
    certain = [] if coverage is None else answers.certain(coverage).tolist()
    in_sets = [] if sets is None else answers.sets(sets).tolist()
    columns.append([DECIDED_BY[is_certain] for is_certain in certain] or nothing)
    columns.append([tuple(compress(classes, row)) for row in in_sets] or nothing)
    return [Answered(*row) for row in zip(*columns, strict=True)]


def shown_headings(rows: Sequence[Answered]) -> dict[str, str]:
    """The columns that are not None, with their headings."""
    return {name: text for name, text in headings(Answered).items() if getattr(rows[0], name) is not None}


def contact_sheet(student: Student, rows: Sequence[Answered], images: Tensor) -> str:
    """A self-contained HTML page: each picture at the size that the student gets, with the answer.

    Rows and images, uint8 [n c h w], are in the order of the page, which has at most 500.
    """
    from polyphony.report.page import render  # here: it imports matplotlib

    shown = [(row, picture_data(image)) for row, image in zip(rows[:MOST_SHOWN], images, strict=False)]
    return render(
        "predictions.html",
        title=f"{len(rows)} predictions",
        student=student.words,
        shown=shown,
        count=len(rows),
    )


def picture_data(image: Tensor) -> str:
    """A picture, uint8 [c h w], as a data URL."""
    levels = image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
