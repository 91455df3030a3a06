"""Rewritten graphs compute the same, and are rewritten only where they do."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info

from polyphony.serve.quantise import convolve_shortcuts

X = torch.randint(0, 256, (2, 3, 7, 8), dtype=torch.uint8).numpy()
END = np.iinfo(np.int64).max


def model_of(nodes, constants, rank=4):
    """A model of nodes x → y, with the shapes of the tensors in between."""
    shape = [None, 3, *(rank - 2) * [None]]
    between = [make_tensor_value_info(node.output[0], 1, shape) for node in nodes[:-1]]
    graph = helper.make_graph(
        nodes,
        "g",
        [make_tensor_value_info("x", 1, rank * [None])],
        [make_tensor_value_info("y", 1, rank * [None])],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
        value_info=between,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def answer(model, x):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def kinds(model):
    return [node.op_type for node in model.graph.node]


def shortcut(starts=0, ends=END, axes=(2, 3), steps=(2, 3), rank=4, pads=(0, 1, 0, 0, 0, 4, 0, 0), more=()):
    nodes = [
        make_node("Relu", ["x"], ["r"]),
        make_node("Slice", ["r", "start", "end", "a", "s"], ["h"]),
        make_node("Slice", ["h", "start", "end", "b", "t"], ["w"]),
        make_node("Pad", ["w", "pads", *more], ["y"]),
    ]
    given = {"start": [starts], "end": [ends], "a": [axes[0]], "b": [axes[1]], "s": [steps[0]]}
    given |= {"t": [steps[1]], "pads": [*pads]} | dict.fromkeys(more, np.float32(1.5))
    return model_of(nodes, given, rank)


def test_a_shortcut_becomes_one_convolution():
    model = shortcut()
    x = X.astype(np.float32) - 100
    before = answer(model, x)
    convolve_shortcuts(model)
    assert kinds(model) == ["Relu", "Conv"]
    np.testing.assert_array_equal(answer(model, x), before)
    np.testing.assert_array_equal(before[:, 1:4], x.clip(0)[:, :, ::2, ::3])
    assert not before[:, [0, 4, 5, 6, 7]].any()
    assert len(model.graph.initializer) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"starts": 1},
        {"ends": 5},
        {"axes": (1, 3)},
        {"axes": (3, 2)},
        {"steps": (-1, 2)},
        {"rank": 5, "pads": (0, 1, 0, 0, 0, 0, 4, 0, 0, 0)},
        {"pads": (0, 1, 1, 0, 0, 4, 0, 0)},
        {"pads": (0, -1, 0, 0, 0, 4, 0, 0)},
        {"more": ("c",)},
    ],
    ids=str,
)
def test_other_slices_and_pads_stay(other):
    model = shortcut(**other)
    convolve_shortcuts(model)
    assert kinds(model) == ["Relu", "Slice", "Slice", "Pad"]
