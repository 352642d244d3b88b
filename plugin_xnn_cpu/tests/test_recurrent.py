"""LSTM, GRU and RNN in numpy, against onnxruntime and the reference evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check

RNG = np.random.default_rng(5)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def model(op_type, *, bias, states, direction="forward", **attributes) -> onnx.ModelProto:
    """Make a model of one node over sequences of 7 rows of 3, batches of 2, 5 hidden units."""
    count = 2 if direction == "bidirectional" else 1
    gates = GATES[op_type] * 5
    weights = {"w": (count, gates, 3), "r": (count, gates, 5)}
    names = ["x", "w", "r", "", ""]
    if bias:
        weights["b"] = (count, 2 * gates)
        names[3] = "b"
    if states:
        weights["h"] = (count, 2, 5)
        names.append("h")
        if op_type == "LSTM":
            weights["c"] = (count, 2, 5)
            names.append("c")
    outputs = ["y", "y_h", "y_c"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(
        op_type, names, outputs, hidden_size=5, direction=direction, **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 2, 3])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def tried(made: onnx.ModelProto) -> None:
    feeds = {"x": RNG.standard_normal((7, 2, 3)).astype(np.float32) * 3}
    program = check(made, feeds, native=None, oracle="onnxruntime")
    (plan,) = program.explain()
    assert plan.kernel.startswith("numpy")


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent(op_type, direction, bias, states):
    tried(model(op_type, bias=bias, states=states, direction=direction))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_that_resets_after_the_product(direction):
    tried(model("GRU", bias=True, states=True, direction=direction, linear_before_reset=1))


def test_what_is_not_covered_falls_back():
    made = model("LSTM", bias=True, states=False, clip=1.0)
    feeds = {"x": RNG.standard_normal((7, 2, 3)).astype(np.float32)}
    program = check(made, feeds, native=None)
    (plan,) = program.explain()
    assert plan.kernel == "onnx.reference"
