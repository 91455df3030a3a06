"""What comes in by the doors beside data and recipes, where the fault is known."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from door_inputs import bomb, packed, student

from polyphony import load_student, resnet
from polyphony.data import DataError
from polyphony.nn.weights import WeightsError, load_weights
from polyphony.recipe import RecipeError
from polyphony.recipe.foreign import PythonNetwork
from polyphony.runs.store import StoreError, read_json
from polyphony.serve.load import CONFIG, WEIGHTS


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"network": {"kind": "resnet", "depth": 8, "width": 4096}}, "parameters, and there are"),
        (
            {"network": {"kind": "python", "name": "os:system", "args": {"command": "false"}}},
            "needs the code",
        ),
        ({"shape": [3, 10**6, 10**6]}, "does not describe a student"),
        ({"temperature": 1e-320}, "does not describe a student"),
        ({"members": 10**9}, "does not describe a student"),
        ({"members": 3}, "do not fit its network"),
    ],
)
def test_a_packed_student_that_lies_about_itself(
    tmp_path: Path, wrong: dict[str, object], fault: str
) -> None:
    said, data = packed("batch_ensemble")
    (tmp_path / WEIGHTS).write_bytes(data)
    (tmp_path / CONFIG).write_text(json.dumps(said))
    assert load_student(tmp_path).predict(np.zeros((1, 8, 8, 3), np.uint8)).members.shape == (2, 1, 3)
    (tmp_path / CONFIG).write_text(json.dumps(said | wrong))
    with pytest.raises(StoreError, match=fault):
        load_student(tmp_path)


def test_a_pipe_in_a_run_folder_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "done.json")
    with pytest.raises(StoreError, match="not a regular file"):
        read_json(tmp_path / "done.json")


def test_weights_that_unpack_out_of_proportion_are_refused_unread(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save(resnet(8, 3, width=2).state_dict(), stream)
    (tmp_path / "w.pt").write_bytes(bomb(stream.getvalue()))
    with pytest.raises(DataError, match="too many for its size"):
        load_weights(resnet(8, 3, width=2), tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes(b"x")
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        load_weights(resnet(8, 3, width=2), tmp_path / "w.pt")


@pytest.mark.parametrize("body", ["import sys; sys.exit(3)", "def make(**given): raise SystemExit"])
def test_code_of_ones_own_that_exits_is_one_sentence(tmp_path: Path, body: str) -> None:
    name = f"exits_{len(body)}"
    (tmp_path / f"{name}.py").write_text(body)
    table = {"kind": "python", "name": f"{name}:make"}
    with pytest.raises(RecipeError, match="SystemExit"):
        PythonNetwork.model_validate(table, context={"folder": str(tmp_path)}).build(3, 3)


@pytest.mark.parametrize(
    "images", [None, 7, np.array("x"), np.zeros((2, 8, 8), "U1"), torch.zeros(2).to_sparse()]
)
def test_what_is_no_image_is_named(images: object) -> None:
    with pytest.raises(DataError, match="image"):
        student().predict(images)
