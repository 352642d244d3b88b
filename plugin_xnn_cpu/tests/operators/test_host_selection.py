"""Operators by numpy that choose, count or place elements, and Fourier transforms.

Against onnxruntime: exact, since elements are small integers, but for transforms (1e-5 of the
largest element: they are computed in double here).
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import session_of
from xnn_kit import close, compile_model

from narrowpass.errors import BackendError

RNG = np.random.default_rng(2)


def model_of(op_type, feeds, outputs, version=20, constants=(), **attributes):
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
        if name not in constants
    ]
    node = helper.make_node(op_type, list(feeds), outputs, name="node", **attributes)
    tensors = [numpy_helper.from_array(feeds[name], name) for name in constants]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto)


def agree(op_type, feeds, outputs=("y",), tolerance=0.0, **more):
    model = model_of(op_type, feeds, list(outputs), **more)
    given = {k: v for k, v in feeds.items() if k not in more.get("constants", ())}
    session = session_of(model, optimized=True)
    expected = session.run(None, given)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        got = program.run(given)
    for name, value in zip(outputs, expected, strict=True):
        if tolerance:
            close(got[name], value, tolerance)
        else:
            assert got[name].dtype == value.dtype
            np.testing.assert_array_equal(got[name], value)


def drawn(shape, dtype):
    """Draw small integers of a type: many are equal."""
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    low = 0 if np.dtype(dtype).kind == "u" else -9
    return RNG.integers(low, 10, shape).astype(dtype)


NUMBERS = [np.float32, np.float64, np.int32, np.int64]


@pytest.mark.parametrize("dtype", [*NUMBERS, np.float16])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k(dtype, largest, axis):
    for k in (0, 1, 3):
        feeds = {"x": drawn((4, 3, 5), dtype), "k": np.array([k], np.int64)}
        agree("TopK", feeds, ("y", "places"), largest=largest, axis=axis)


@pytest.mark.parametrize("dtype", [*NUMBERS, np.uint8, np.int8])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(dtype, reduction, axis):
    data, updates = drawn((5, 6), dtype), drawn((2, 6), dtype)
    # Without a reduction no two updates go to one place.
    if reduction == "none":
        size = data.shape[axis]
        along = [RNG.permutation(size)[: 2 if axis == 0 else 6] - size for _ in range(6)]
        indices = np.stack(along, 1) if axis == 0 else np.stack(along[:2])
    else:
        indices = RNG.integers(-5, 5, (2, 6))
    feeds = {"data": data, "indices": indices.astype(np.int64), "updates": updates}
    agree("ScatterElements", feeds, axis=axis, reduction=reduction)


@pytest.mark.parametrize("dtype", [*NUMBERS, np.bool_])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_nd(dtype, reduction):
    if dtype == np.bool_ and reduction in ("mul", "min", "max", "add"):
        pytest.skip("onnxruntime has these for numbers only")
    places = RNG.permutation(20)[:6]
    indices = np.stack(np.divmod(places, 5), -1).reshape(2, 3, 2)
    feeds = {
        "data": drawn((4, 5, 3), dtype),
        "indices": indices.astype(np.int64),
        "updates": drawn((2, 3, 3), dtype),
    }
    agree("ScatterND", feeds, version=18, reduction=reduction)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_places_of_extremes(op_type, last, dtype):
    for axis, keep in ((0, 1), (1, 0), (-1, 1)):
        feeds = {"x": drawn((4, 5, 6), dtype)}
        agree(op_type, feeds, axis=axis, keepdims=keep, select_last_index=last)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_cumulative_sums(exclusive, reverse, dtype):
    for axis in (0, 1, -1):
        feeds = {"x": drawn((3, 4, 5), dtype), "axis": np.array(axis, np.int64)}
        agree("CumSum", feeds, exclusive=exclusive, reverse=reverse)


def test_exclusive_cumsum_of_no_elements():
    feeds = {"x": np.zeros((2, 0), np.float32), "axis": np.array(1, np.int64)}
    agree("CumSum", feeds, exclusive=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis):
    feeds = {
        "indices": np.array([[0, 3, -1], [9, -4, 2]], np.int64),
        "depth": np.array([4], np.int64),
        "values": np.array([-1.5, 2.5], np.float32),
    }
    agree("OneHot", feeds, axis=axis)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress(axis):
    named = {} if axis is None else {"axis": axis}
    agree("Compress", {"x": drawn((3, 4), np.float32), "c": np.array([1, 0, 1], bool)}, **named)


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch, time):
    feeds = {"x": drawn((4, 4, 3), np.float32), "lengths": np.array([1, 4, 2, 3], np.int64)}
    agree("ReverseSequence", feeds, batch_axis=batch, time_axis=time)


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(ordered, axis):
    named = {} if axis is None else {"axis": axis}
    x = np.array([[3, 1, 3], [3, 1, 3], [0, 1, 0]], np.float32)
    agree("Unique", {"x": x}, ("y", "first", "inverse", "counts"), sorted=ordered, **named)


def test_eye_like_and_space_to_depth():
    agree("EyeLike", {"x": drawn((3, 5), np.float32)}, k=1, dtype=TensorProto.INT32)
    agree("SpaceToDepth", {"x": drawn((2, 3, 4, 6), np.float32)}, blocksize=2)


@pytest.mark.parametrize("centered", [0, 1])
def test_suppression_of_overlapping_boxes(centered):
    boxes = RNG.random((2, 40, 4)).astype(np.float32)
    feeds = {
        "boxes": boxes,
        "scores": RNG.random((2, 3, 40)).astype(np.float32),
        "most": np.array([7], np.int64),
        "overlap": np.array([0.3], np.float32),
        "least": np.array([0.2], np.float32),
    }
    agree("NonMaxSuppression", feeds, center_point_box=centered)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("named", [{}, {"onesided": 1}, {"inverse": 1}])
def test_dft(parts, named):
    if parts == 2 and "onesided" in named:
        pytest.skip("one side is of numbers without an imaginary part")
    x = RNG.standard_normal((2, 12, parts)).astype(np.float32)
    agree("DFT", {"x": x}, tolerance=1e-5, version=17, axis=1, **named)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided):
    feeds = {
        "signal": RNG.standard_normal((2, 100, 1)).astype(np.float32),
        "step": np.array(10, np.int64),
        "frame": RNG.random(32).astype(np.float32),
    }
    more = {"constants": ("step", "frame"), "onesided": onesided}
    agree("STFT", feeds, tolerance=1e-5, version=17, **more)


@pytest.mark.parametrize("op_type", ["GatherElements", "ScatterElements"])
def test_narrow_floats(op_type):
    """Against the same elements in float32: onnxruntime has some of these for float32 alone."""
    data, indices = drawn((3, 4), np.float16), RNG.integers(-3, 3, (2, 4))
    feeds = {"data": data, "indices": indices}
    if op_type == "ScatterElements":
        feeds["updates"] = drawn((2, 4), np.float16)
    more = {"reduction": "add"} if op_type == "ScatterElements" else {}
    wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
    results = []
    for given in (feeds, wide):
        with compile_model(model_of(op_type, given, ["y"], version=18, **more)) as program:
            results.append(program.run(given)["y"])
    assert results[0].dtype == np.float16
    np.testing.assert_array_equal(results[0].astype(np.float32), results[1])


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_indices_out_of_range_are_errors(op_type):
    indices = np.array([[7, 0]], np.int64)
    feeds = {"data": drawn((3, 4), np.float32), "indices": indices}
    feeds["updates"] = drawn((1, 2) if op_type == "ScatterElements" else (1,), np.float32)
    program = compile_model(model_of(op_type, feeds, ["y"], version=18))
    with program, pytest.raises(BackendError, match="'node'"):
        program.run(feeds)


def test_a_node_with_an_output_that_its_operator_lacks():
    """The second is left out, so that onnx infers nothing wrong of it."""
    feeds = {
        name: np.array(value, np.float32) for name, value in zip("abc", (0, 4, 1), strict=True)
    }
    model = model_of("Range", feeds, ["y", ""])
    del model.graph.output[1]
    with (
        compile_model(model) as program,
        pytest.raises(BackendError, match="names 2 outputs, and the operator has 1"),
    ):
        program.run(feeds)
