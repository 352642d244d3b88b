"""ArgMax, ArgMin and CumSum by kernels: the same bits as numpy's, and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import run_onnxruntime
from xnn_kit import compile_model

from narrowpass.errors import BackendError

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


SHAPES = [((300,), 0), ((7, 31), -1), ((7, 33), 0), ((3, 5, 700), 1), ((2, 1, 3), 1), ((0, 3), 1)]


def prefix_sum_model(dtype, shape, axis, **attributes):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in "xy")
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"], **attributes)]
    axes = [numpy_helper.from_array(np.array(axis), "axis")]
    graph = helper.make_graph(nodes, "g", [x], [y], axes)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9)


def prefix_sum(model, x, threads=1):
    with compile_model(model, threads=threads) as program:
        (plan,) = program.explain()
        assert plan.kernel == "cumulative sum"
        return program.run({"x": x})["y"]


def prefix_sum_by_numpy(x, axis, exclusive, reverse):
    x = np.flip(x, axis) if reverse else x
    found = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        found = np.roll(found, 1, axis)
        found[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = 0
    return np.flip(found, axis) if reverse else found


def values(dtype, shape):
    if np.dtype(dtype).kind == "f":
        return RNG.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)  # numbers whose sum wraps around
    return RNG.integers(limits.min, limits.max, shape, dtype)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_prefix_sum(dtype, reverse, exclusive, shape, axis):
    x = values(dtype, shape)
    model = prefix_sum_model(dtype, shape, axis, exclusive=int(exclusive), reverse=int(reverse))
    expected = prefix_sum_by_numpy(x, axis, exclusive, reverse)
    for threads in (1, 3):
        np.testing.assert_array_equal(prefix_sum(model, x, threads), expected, strict=True)
    np.testing.assert_allclose(run_onnxruntime(model, {"x": x})["y"], expected, 1e-4, 1e-4)


def test_prefix_sum_of_nan_and_infinities():
    x = np.float32([1, np.inf, 2, -np.inf, 3, np.nan])
    expected = np.float32([1, np.inf, np.inf, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(prefix_sum(prefix_sum_model("float32", (6,), 0), x), expected)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (1, 2), (4, 33)])
@pytest.mark.parametrize("exclusive", [False, True])
def test_prefix_sum_of_negative_zeros(shape, exclusive):
    x = np.full(shape, -0.0, np.float32)
    found = prefix_sum(prefix_sum_model("float32", shape, 0, exclusive=int(exclusive)), x)
    expected = prefix_sum_by_numpy(x, 0, exclusive, reverse=False)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_prefix_sum_of_large_tensors():
    x = RNG.standard_normal((3, 50, 4000)).astype(np.float32)
    for axis in (0, 1, 2):
        found = prefix_sum(prefix_sum_model("float32", x.shape, axis), x, threads=2)
        np.testing.assert_array_equal(found, np.cumsum(x, axis, dtype=np.float32))


@pytest.mark.parametrize("axis", [2, -3])
def test_prefix_sum_along_an_axis_out_of_range(axis):
    with (
        compile_model(prefix_sum_model("float32", (3, 4), axis)) as program,
        pytest.raises(BackendError, match=rf"CumSum.* failed: axis {axis} is out of bounds"),
    ):
        program.run({"x": np.zeros((3, 4), np.float32)})
