"""(x - y)² as one operator of XNNPACK, against numpy, bit for bit, and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import run_onnxruntime
from xnn_kit import compile_model

RNG = np.random.default_rng(11)
SHAPES = [
    ((3, 5), (3, 5)),
    ((2, 3, 4), (4,)),
    ((1, 7), (6, 1)),
    ((5, 4, 3, 2), (1,)),
    ((0, 3), (3,)),
]


def model_of(first, second, *, read_too=False):
    """Return a model of Pow(Sub(x, y), 2); `read_too` adds the difference to the outputs."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, first)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, second)
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    if read_too:
        outputs.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("Sub", ["x", "y"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["z"]),
    ]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = helper.make_graph(nodes, "g", [x, y], outputs, [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("first", "second"), SHAPES)
@pytest.mark.parametrize("read_too", [False, True], ids=["alone", "difference read too"])
def test_squared_differences(first, second, read_too):
    """Each element is one subtraction and one multiplication, rounded to nearest: exact bits."""
    model = model_of(first, second, read_too=read_too)
    feeds = {
        "x": RNG.standard_normal(first).astype(np.float32),
        "y": RNG.standard_normal(second).astype(np.float32),
    }
    with compile_model(model) as program:
        kernels = {plan.kernel for plan in program.explain()}
        assert ("xnn squared_difference" in kernels) is not read_too
        found = program.run(feeds)
    np.testing.assert_array_equal(found["z"], (feeds["x"] - feeds["y"]) ** 2)
    np.testing.assert_array_equal(found["z"], run_onnxruntime(model, feeds)["z"])


def test_infinities_and_nan():
    x = np.array([np.inf, -np.inf, np.inf, np.nan, 3e38], np.float32)
    y = np.array([1, 1, np.inf, 1, -3e38], np.float32)
    with compile_model(model_of((5,), (5,))) as program:
        found = program.run({"x": x, "y": y})["z"]
    np.testing.assert_array_equal(found, np.array([np.inf, np.inf, np.nan, np.nan, np.inf]))
