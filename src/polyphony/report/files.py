"""The files of a run folder, read and checked: one sentence for a file that is not what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import safetensors
import torch
from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from polyphony.predictions import Predictions
from polyphony.recipe.read import explain
from polyphony.recipe.table import as_table
from polyphony.rows import TableRow, from_csv
from polyphony.scores import TEACHERS
from polyphony.store import StoreError, is_dirichlet, read_bytes, read_json
from polyphony.words import first_line

Kind = TypeVar("Kind", bound=TableRow)
_AGAIN = "delete it to make it again"

_EVALUATIONS = {"ood": "--ood", "corrupted": "--corrupted"}  # the tables that no analysis makes


class _Form(BaseModel):
    kind: str = ""


class _Part(BaseModel):
    """What a report reads of the teachers, the student and a method, each of which has some of it."""

    network: dict[str, Any] = {}
    form: Annotated[_Form, BeforeValidator(as_table)] = _Form()
    perturb: str = ""
    extra: NonNegativeInt = 0
    epochs: float = 0
    batch: float = 0
    learning_rate: float = 0
    weight_decay: float = 0
    alpha: float = 0
    temperature: float = 0
    step_size: float | str = 0


class _Recipe(BaseModel):
    members: PositiveInt
    data: dict[str, Any] = {}
    teachers: _Part = _Part()
    student: _Part = _Part()
    methods: dict[str, _Part] = {}


class Facts(BaseModel):
    """recipe.json as far as a report reads it; runs of other versions may have more in it."""

    recipe: _Recipe = Field(default={}, validate_default=True)
    data: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    machine: dict[str, Any] = {}


class Asked(BaseModel):
    """sweep.json as far as a report reads it."""

    recipe: str
    method: str
    settings: dict[str, Any]
    own: dict[str, float | str | None]


class Done(BaseModel):
    """A training's done.json as far as a report reads it."""

    seconds: float = 0
    adopted: str = ""


def read_object(path: Path, shape: type[BaseModel], again: str) -> dict[str, Any]:
    """A JSON object of a shape; `again` says what to do where it is another."""
    value = read_json(path)
    try:
        shape.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise StoreError(f"{path} is damaged ({explain(error.errors()[0])}): {again}") from None
    return value


def read_analysis(run: Path, kind: type[Kind]) -> list[Kind]:
    """A table of RUN/analysis."""
    name = Path(kind.file).stem
    verb = f"evaluate {run} {_EVALUATIONS[name]} NAME" if name in _EVALUATIONS else f"analyse {run} {name}"
    return read_table(run, kind, f"delete it and run 'polyphony {verb}' again")


def read_table(run: Path, kind: type[Kind], again: str) -> list[Kind]:
    """The rows of a run's table; `again` says what to do where it is damaged."""
    path = run / kind.file
    try:
        return from_csv(read_bytes(path).decode(), kind)
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}): {again}") from error


def read_log(path: Path) -> list[dict[str, float]]:
    """A training log, a row an epoch; a line that a stopped training left half written is not counted."""
    try:
        text = read_bytes(path).decode()
        return [_epoch(json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise StoreError(
            f"{path} is damaged ({first_line(error)}): delete it to report without it,"
            f" or {path.parent} to train again"
        ) from error


def _epoch(row: Any) -> dict[str, float]:
    numbers = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
    if not numbers or not isinstance(row.get("epoch"), int):
        raise ValueError("a line is not the numbers of an epoch")
    return dict(row)


def read_predictions(path: Path) -> Predictions | None:
    """Saved predictions, whatever they depend on; nothing where there is no file."""
    if not path.is_file():
        return None
    tensors = read_tensors(path)
    if "logits" not in tensors:
        raise StoreError(f"{path} holds no logits: delete it to predict again")
    labels = tensors.get("labels", torch.full((tensors["logits"].shape[1],), -1))
    with safetensors.safe_open(path, framework="pt") as file:
        return Predictions(tensors["logits"], labels, is_dirichlet(file))


def stored_shape(path: Path) -> tuple[int, int]:
    """How many members and how many images saved predictions are of, without reading them."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            members, images = file.get_slice("logits").get_shape()[:2]
            return int(members), int(images)
    except (safetensors.SafetensorError, OSError) as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}): {_AGAIN}") from error


def read_views(path: Path) -> dict[str, Tensor]:
    """members.safetensors: images and perturbed [e c h w], the teachers and students [2 m e k]."""
    tensors = read_tensors(path)
    images = tensors.get("images", torch.empty(0))
    models = [each for name, each in tensors.items() if name not in ("images", "perturbed")]
    pictures = images.dim() == 4 and len(images) and images.shape[1] in (1, 3)
    alike = "perturbed" in tensors and tensors["perturbed"].shape == images.shape
    asked = all(each.dim() == 4 and (each.shape[0], each.shape[2]) == (2, len(images)) for each in models)
    if not (pictures and alike and asked and TEACHERS in tensors):
        again = f"delete it and run 'polyphony analyse {path.parents[1]} members' again"
        raise StoreError(f"{path} is damaged (it does not hold images and what members say of them): {again}")
    return tensors


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}): {_AGAIN}") from error
