"""Answers image by image: rows for a table, and a page with the pictures."""

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
MOST_SHOWN = 500  # pictures on a page, which holds them all within


@dataclass(frozen=True)
class Answered:
    """What a student says of one image; uncertainties in nats."""

    image: Annotated[str, "image"]
    label: Annotated[str, "class"]
    confidence: Annotated[float, "confidence"]
    entropy: Annotated[float, "entropy"]
    mutual_information: Annotated[float, "mutual information"]
    by: Annotated[str | None, "decided by"] = None  # "model" or "person", where a coverage was asked for
    set: Annotated[tuple[str, ...] | None, "possible classes"] = None  # where sets were asked for


def answered(
    names: Sequence[str],
    classes: Sequence[str],
    answers: Answers,
    coverage: float | None = None,
    sets: float | None = None,
) -> list[Answered]:
    """A row for each image, in order; with a coverage who decides, with `sets` the classes it may be."""
    labels = [classes[label] for label in answers.labels.tolist()]
    numbers = (answers.confidence, answers.entropy, answers.mutual_information)
    columns: list[Sequence[Any]] = [names, labels, *(each.tolist() for each in numbers)]
    nothing = [None] * len(names)
    sure = [] if coverage is None else answers.certain(coverage).tolist()
    held = [] if sets is None else answers.sets(sets).tolist()
    columns.append([DECIDED_BY[each] for each in sure] or nothing)
    columns.append([tuple(compress(classes, each)) for each in held] or nothing)
    return [Answered(*row) for row in zip(*columns, strict=True)]


def shown_headings(rows: Sequence[Answered]) -> dict[str, str]:
    """The columns that rows have, each with its heading."""
    return {name: text for name, text in headings(Answered).items() if getattr(rows[0], name) is not None}


def contact_sheet(student: Student, rows: Sequence[Answered], images: Tensor) -> str:
    """One HTML page that needs no other file: each picture as the student sees it, with its answer.

    Rows and images, uint8 [n c h w], in the order of the page; of many the first 500 are shown.
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
    """A picture as the address of its own content. uint8 [c h w]"""
    levels = image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
