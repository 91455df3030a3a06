"""Readers for the files of a run folder; a damaged file raises a FileError with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from polyphony._util.text import first_line
from polyphony.recipe.read import explain
from polyphony.runs.rows import TableRow, from_csv
from polyphony.runs.scores import TEACHERS
from polyphony.runs.store import damaged, opened, read_bytes, read_json

Row = TypeVar("Row", bound=TableRow)
Shape = TypeVar("Shape", bound=BaseModel)


class Facts(BaseModel):
    """recipe.json: the resolved recipe, the fingerprints and classes of the data, versions, machine.

    `network` is the students' network if the recipe only names the files that describe it.
    """

    recipe: dict[str, Any]
    data: dict[str, Any] = {}
    images: dict[str, Any] = {}
    network: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    machine: dict[str, Any] = {}


class Asked(BaseModel):
    """The parts of sweep.json that a report reads: what was swept, and how."""

    recipe: str
    method: str
    settings: dict[str, Any]
    own: dict[str, float | str | None]
    trials: int | None = None


class Done(BaseModel):
    """The parts of a training's done.json that a report reads."""

    seconds: float | None = None
    adopted: str | None = None


def read_object(path: Path, shape: type[Shape]) -> Shape:
    """A JSON file, validated as this model."""
    value = read_json(path)
    try:
        return shape.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise damaged(path, explain(error.errors()[0])) from None


def read_table(run: Path, kind: type[Row]) -> list[Row]:
    """The rows of a run's table."""
    path = run / kind.file
    try:
        return from_csv(read_bytes(path).decode(), kind)
    except ValueError as error:
        raise damaged(path, first_line(error)) from error


def read_log(path: Path) -> list[dict[str, float]]:
    """A training log with one row per epoch; ignores a half-written last line."""
    try:
        text = read_bytes(path).decode()
        return [_epoch(json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise damaged(path, first_line(error)) from error


def _epoch(row: Any) -> dict[str, float]:
    numbers = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
    if not numbers or not isinstance(row.get("epoch"), int):
        raise ValueError("a line is not the numbers of an epoch")
    return dict(row)


def count_images(path: Path) -> int:
    """The number of images in a file of predictions, from its header alone."""
    with opened(path) as file:
        shape = file.get_slice("logits").get_shape()
    if len(shape) != 3:
        raise damaged(path, f"its logits are {shape}, not members, images and classes")
    return int(shape[1])


def read_views(path: Path) -> dict[str, Tensor]:
    """members.safetensors: images and perturbed [e c h w], the teachers and students [2 m e k]."""
    with opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    images = tensors.get("images", torch.empty(0))
    models = [each for name, each in tensors.items() if name not in ("images", "perturbed")]
    pictures = images.dim() == 4 and len(images) and images.shape[1] in (1, 3)
    alike = "perturbed" in tensors and tensors["perturbed"].shape == images.shape
    asked = all(each.dim() == 4 and (each.shape[0], each.shape[2]) == (2, len(images)) for each in models)
    if not (pictures and alike and asked and TEACHERS in tensors):
        raise damaged(path, "it does not hold images and what members say of them")
    return tensors
