"""Answers image by image: rows for a table, and a page with the pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from PIL import Image
from torch import Tensor

from polyphony.report.page import render
from polyphony.serve.student import Answers, Student

MOST_SHOWN = 500  # pictures on a page, which holds them all within


@dataclass(frozen=True)
class Answered:
    """What a student says of one image; uncertainties in nats."""

    image: Annotated[str, "image"]
    label: Annotated[str, "class"]
    confidence: Annotated[float, "confidence"]
    entropy: Annotated[float, "entropy"]
    mutual_information: Annotated[float, "mutual information"]


def answered(names: Sequence[str], classes: Sequence[str], answers: Answers) -> list[Answered]:
    """A row for each image, in order."""
    labels = [classes[label] for label in answers.labels.tolist()]
    numbers = (answers.confidence, answers.entropy, answers.mutual_information)
    columns = (names, labels, *(each.tolist() for each in numbers))
    return [Answered(*row) for row in zip(*columns, strict=True)]


def contact_sheet(student: Student, rows: Sequence[Answered], images: Tensor) -> str:
    """One HTML page that needs no other file: each picture as the student sees it, with its answer.

    Rows and images, uint8 [n c h w], in the order of the page; of many the first 500 are shown.
    """
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
