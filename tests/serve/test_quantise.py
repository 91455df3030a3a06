"""Rewritten graphs compute the same, and are rewritten only where they do."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info

from polyphony.serve.quantise import pad_in_int8, pool_for_slices

X = torch.randint(0, 256, (2, 3, 7, 8), dtype=torch.uint8).numpy()
END = np.iinfo(np.int64).max


def model_of(nodes, constants, rank=4, kind=1):
    """A model of nodes x → y, with the ranks of the tensors in between."""
    between = [make_tensor_value_info(node.output[0], 1, rank * [None]) for node in nodes[:-1]]
    graph = helper.make_graph(
        nodes,
        "g",
        [make_tensor_value_info("x", kind, rank * [None])],
        [make_tensor_value_info("y", kind, rank * [None])],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
        value_info=between,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def answer(model, x):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def kinds(model):
    return [node.op_type for node in model.graph.node]


def sliced(starts=0, ends=END, axes=(2, 3), steps=(2, 3), rank=4):
    nodes = [
        make_node("Relu", ["x"], ["r"]),
        make_node("Slice", ["r", "start", "end", "a", "s"], ["h"]),
        make_node("Slice", ["h", "start", "end", "b", "t"], ["y"]),
    ]
    given = {"start": [starts], "end": [ends], "a": [axes[0]], "b": [axes[1]], "s": [steps[0]]}
    return model_of(nodes, given | {"t": [steps[1]]}, rank)


def test_two_slices_become_one_pool():
    model = sliced()
    x = X.astype(np.float32) - 100
    before = answer(model, x)
    pool_for_slices(model)
    assert kinds(model) == ["Relu", "MaxPool"]
    np.testing.assert_array_equal(answer(model, x), before)
    np.testing.assert_array_equal(before, x.clip(0)[:, :, ::2, ::3])
    assert len(model.graph.initializer) == 0


@pytest.mark.parametrize(
    "other",
    [{"starts": 1}, {"ends": 5}, {"axes": (1, 3)}, {"axes": (3, 2)}, {"steps": (-1, 2)}, {"rank": 5}],
    ids=str,
)
def test_other_slices_stay(other):
    model = sliced(**other)
    pool_for_slices(model)
    assert kinds(model) == ["Relu", "Slice", "Slice"]


def padded(scales=(0.5, 0.5), zeros=(7, 7), *more):
    nodes = [
        make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        make_node("Pad", ["d", "pads", *more], ["p"]),
        make_node("QuantizeLinear", ["p", "t", "w"], ["y"]),
    ]
    given = {"s": np.float32(scales[0]), "t": np.float32(scales[1]), "pads": [0, 1, 0, 0, 0, 4, 0, 0]}
    given |= {"z": np.uint8(zeros[0]), "w": np.uint8(zeros[1])} | dict.fromkeys(more, np.float32(1.5))
    return model_of(nodes, given, kind=2)


def test_padding_between_equal_scales_is_done_in_int8():
    model = padded()
    before = answer(model, X)
    pad_in_int8(model)
    assert kinds(model) == ["Pad"]
    np.testing.assert_array_equal(answer(model, X), before)
    assert (before[:, 0] == 7).all()


@pytest.mark.parametrize("other", [((0.5, 0.25),), ((0.5, 0.5), (7, 8)), ((0.5, 0.5), (7, 7), "c")], ids=str)
def test_other_padding_stays(other):
    model = padded(*other)
    pad_in_int8(model)
    assert kinds(model) == ["DequantizeLinear", "Pad", "QuantizeLinear"]
