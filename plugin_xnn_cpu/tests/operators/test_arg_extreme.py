"""ArgMax and ArgMin of float32 by a kernel: exact indices, against numpy and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from oracle_kit import run_onnxruntime
from xnn_kit import compile_model

RNG = np.random.default_rng(5)


def model_of(op_type, shape, **attributes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], **attributes)], "g", [x], [y]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def indices(model, x, threads=1):
    with compile_model(model, threads=threads) as program:
        (plan,) = program.explain()
        assert plan.kernel.split(" + ")[0] == "arg extreme"
        return program.run({"x": x})["y"]


def expected_by_numpy(op_type, x, axis, keepdims, last):
    function = np.argmax if op_type == "ArgMax" else np.argmin
    if not last:
        return function(x, axis, keepdims=keepdims)
    return x.shape[axis] - 1 - function(np.flip(x, axis), axis, keepdims=keepdims)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((300,), 0), ((7, 31), -1), ((7, 33), 1), ((3, 5, 700), 1), ((9, 4), 0), ((2, 1, 3), 1)],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_indices_among_equal_elements(op_type, last, shape, axis, threads):
    x = RNG.integers(-3, 3, shape).astype(np.float32)
    for keepdims in (0, 1):
        attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": int(last)}
        model = model_of(op_type, shape, **attributes)
        found = indices(model, x, threads)
        np.testing.assert_array_equal(
            found, expected_by_numpy(op_type, x, axis, bool(keepdims), last)
        )
        np.testing.assert_array_equal(found, run_onnxruntime(model, {"x": x})["y"])


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinities(op_type, last, axis):
    """NaN is more extreme than any number, as in numpy; onnxruntime does not define it."""
    x = RNG.standard_normal((70, 90)).astype(np.float32)
    x[RNG.random(x.shape) < 0.02] = np.nan
    x[RNG.random(x.shape) < 0.1] = np.inf
    x[RNG.random(x.shape) < 0.1] = -np.inf
    model = model_of(op_type, x.shape, axis=axis, select_last_index=int(last))
    np.testing.assert_array_equal(
        indices(model, x), expected_by_numpy(op_type, x, axis, True, last)
    )


def test_large_tensors_by_several_threads():
    x = RNG.standard_normal((3, 50, 4000)).astype(np.float32)
    for axis in (0, 1, 2):
        model = model_of("ArgMax", x.shape, axis=axis)
        np.testing.assert_array_equal(indices(model, x, threads=2), x.argmax(axis, keepdims=True))


def test_an_axis_of_no_elements_is_an_error():
    model = model_of("ArgMax", ("N", 4), axis=0)
    with (
        compile_model(model) as program,
        pytest.raises(Exception, match="axis 0 of \\[0, 4\\] has no elements to compare"),
    ):
        program.run({"x": np.zeros((0, 4), np.float32)})
