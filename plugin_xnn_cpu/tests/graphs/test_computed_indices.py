"""Gathering, scattering and choosing by computed indices, in a tape.

Against onnxruntime, exact: elements are moved, or reduced in the same order (float additions are of
small integers); TopK with NaN against numpy, since onnxruntime leaves its order open.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import session_of
from xnn_kit import compile_model

from narrowpass.errors import BackendError

pytest.importorskip("onnxruntime")
MOVED = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
REDUCED = ["float32", "float64", "int32", "int64"]


def model_of(kind, feeds, outputs=("y",), opset=18, **attributes):
    """Build a model of one node, all of whose sizes are unknown but the length of index tuples."""
    inputs = []
    for name, array in feeds.items():
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
        if name == "indices" and kind.endswith("ND"):
            dims[-1] = array.shape[-1]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, dtype, dims))
    node = helper.make_node(kind, list(feeds), list(outputs), name="node", **attributes)
    first = helper.np_dtype_to_tensor_dtype(next(iter(feeds.values())).dtype)
    types = [first, TensorProto.INT64]
    declared = [
        helper.make_tensor_value_info(name, types[index], None)
        for index, name in enumerate(outputs)
        if name
    ]
    graph = helper.make_graph([node], "g", inputs, declared)
    opsets = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9)
    )


def agree(kind, *all_feeds, threads=1, **more):
    """Check runs of one program, whose shapes may change, and that it is all in one tape."""
    model = model_of(kind, all_feeds[0], **more)
    session = session_of(model, optimized=True)
    with compile_model(model, threads=threads) as program:
        assert all(plan.partition is not None for plan in program.explain())
        for feeds in all_feeds:
            got = program.run(feeds)
            for value, due in zip(got.values(), session.run(None, feeds), strict=True):
                assert value.dtype == due.dtype
                np.testing.assert_array_equal(value, due)


def drawn(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind in "ub" else -9
    return rng.integers(low, 10, shape).astype(dtype)


def places(shape, size, seed=0, dtype=np.int64):
    return np.random.default_rng(seed).integers(-size, size, shape).astype(dtype)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 4])
def test_gather_elements_of_any_type(dtype, index, threads):
    feeds = [
        {"data": drawn(shape, dtype), "indices": places(given, shape[1], dtype=index)}
        for shape, given in (
            ((5, 7, 3), (4, 9, 2)),
            ((60, 40, 50), (60, 33, 50)),
            ((1, 1, 1), (1, 1, 1)),
            ((2, 3, 4), (2, 0, 4)),
        )
    ]
    agree("GatherElements", *feeds, axis=1, threads=threads)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, -1])
def test_gather_of_any_type(dtype, index, axis):
    feeds = [
        {"data": drawn(shape, dtype), "indices": places(given, shape[axis], dtype=index)}
        for shape, given in (((5, 7, 3), (4, 2)), ((90, 40, 50), (3, 70)), ((2, 3, 4), (0, 4)))
    ]
    agree("Gather", *feeds, axis=axis, threads=4)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_from_constant_bytes(dtype, axis):
    """Such a table is no narrow float, whose gathered elements would be upcast."""
    table = drawn((6, 5), dtype)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"], axis=axis)],
        "g",
        [helper.make_tensor_value_info("at", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(table.dtype), None)],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    at = np.array([4, -5, 0])
    got = compile_model(model).run({"at": at})["y"]
    np.testing.assert_array_equal(got, np.take(table, at, axis))


@pytest.mark.parametrize("axis", [-1, 0])
def test_gather_elements_of_one_long_row_by_several_threads(axis):
    feeds = {"data": drawn((300_000,), "float32"), "indices": places((200_001,), 300_000)}
    agree("GatherElements", feeds, axis=axis, threads=4)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements_to_places_of_their_own(dtype, threads, axis):
    rng = np.random.default_rng(3)
    feeds = []
    for shape in ((4, 5, 6), (30, 60, 50), (1, 1, 1)):
        order = np.argsort(rng.random(shape), axis).astype(np.int64)
        feeds.append(
            {"data": drawn(shape, dtype), "indices": order, "updates": drawn(shape, dtype, 1)}
        )
    agree("ScatterElements", *feeds, axis=axis, threads=threads)


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_updates_of_one_element_are_reduced_in_order(dtype, reduction):
    feeds = [
        {
            "data": drawn(shape, dtype),
            "indices": places(given, shape[1]),
            "updates": drawn(given, dtype, 2) % 3,
        }
        for shape, given in (((4, 3), (2, 9)), ((90, 50), (90, 70)), ((4, 3), (0, 2)))
    ]
    agree("ScatterElements", *feeds, axis=1, reduction=reduction, threads=4)


@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_non_finite_elements_are_reduced_as_onnxruntime_does(reduction):
    special = np.array([np.nan, 1.0, np.inf, -np.inf, 2.0], np.float32)
    data, updates = (array.ravel().copy() for array in np.meshgrid(special, special))
    feeds = {"data": data, "indices": np.arange(25), "updates": updates}
    agree("ScatterElements", feeds, reduction=reduction)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("batched", [0, 1])
def test_gather_nd_of_any_type(dtype, batched):
    feeds = [
        {"data": drawn(shape, dtype), "indices": places((shape[0], count, 2), 2)}
        for shape, count in (((3, 4, 2, 5), 7), ((9, 2, 3, 400), 60), ((2, 2, 2, 2), 0))
    ]
    agree("GatherND", *feeds, batch_dims=batched, threads=4)


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("threads", [1, 4])
def test_scatter_nd_to_places_of_their_own(dtype, threads):
    feeds = []
    for shape, count in (((4, 5, 3), 6), ((30, 40, 600), 100), ((1, 1, 1), 1), ((3, 4, 5), 0)):
        flat = np.random.default_rng(1).permutation(shape[0] * shape[1])[:count]
        indices = np.stack(np.divmod(flat, shape[1]), -1).astype(np.int64)
        updates = drawn((count, shape[2]), dtype, 1)
        feeds.append({"data": drawn(shape, dtype), "indices": indices, "updates": updates})
    agree("ScatterND", *feeds, threads=threads)


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_slices_are_reduced_in_order(dtype, reduction):
    feeds = {
        "data": drawn((5, 300), dtype),
        "indices": places((20, 1), 5),
        "updates": drawn((20, 300), dtype, 1) % 3,
    }
    agree("ScatterND", feeds, reduction=reduction, threads=4)


@pytest.mark.parametrize(
    ("kind", "data", "given", "updates"),
    [
        ("Gather", (64, 4), (64, 4), None),
        ("GatherElements", (64, 4), (64, 4), None),
        ("GatherND", (64, 4), (64, 1), None),
        ("ScatterElements", (64, 4), (64, 4), (64, 4)),
        ("ScatterND", (64, 4), (64, 1), (64, 4)),
    ],
)
@pytest.mark.parametrize("index", [64, -65, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_is_an_error_that_names_the_node(kind, data, given, updates, index):
    indices = np.zeros(given, np.int64)
    indices[-1, -1] = index
    feeds = {"data": np.zeros(data, np.float32), "indices": indices}
    if updates:
        feeds["updates"] = np.zeros(updates, np.float32)
    model = model_of(kind, feeds)
    with compile_model(model) as program, pytest.raises(BackendError, match="node"):
        program.run(feeds)


@pytest.mark.parametrize(
    ("kind", "feeds"),
    [
        ("GatherElements", {"data": (4, 4), "indices": (5, 4)}),
        ("GatherND", {"data": (3, 2), "indices": (4, 3)}),
        ("ScatterElements", {"data": (4, 4), "indices": (2, 4), "updates": (2, 3)}),
        ("ScatterND", {"data": (4, 4), "indices": (2, 1), "updates": (2, 3)}),
    ],
)
def test_shapes_that_do_not_fit_are_errors(kind, feeds):
    arrays = {
        name: np.zeros(shape, np.int64 if name == "indices" else np.float32)
        for name, shape in feeds.items()
    }
    more = {"axis": 1} if kind.endswith("Elements") else {}
    with pytest.raises(BackendError, match="node"):
        compile_model(model_of(kind, arrays, **more)).run(arrays)


def best_model(dtype, outputs=("y", "places"), **attributes):
    """Build a model with some outputs of a TopK whose count is the length of another input."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = [
        helper.make_tensor_value_info("x", kind, ["a", "b", "c"]),
        helper.make_tensor_value_info("like", TensorProto.FLOAT, ["k"]),
    ]
    nodes = [
        helper.make_node("Shape", ["like"], ["count"]),
        helper.make_node("TopK", ["x", "count"], ["y", "places"], name="node", **attributes),
    ]
    types = {"y": kind, "places": TensorProto.INT64}
    declared = [helper.make_tensor_value_info(name, types[name], None) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, declared)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("dtype", [*REDUCED, "float16"])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("outputs", [("y", "places"), ("y",), ("places",)])
def test_top_k_of_a_count_from_shapes(dtype, largest, axis, outputs):
    model = best_model(dtype, outputs, largest=largest, axis=axis)
    session = session_of(model, optimized=True)
    with compile_model(model, threads=4) as program:
        assert any("top-k" in plan.kernel for plan in program.explain())
        for shape, count in (((4, 5, 6), 3), ((40, 50, 60), 40), ((1, 1, 1), 1), ((2, 3, 4), 0)):
            # Small integers: many are equal, and the first of them comes first.
            feeds = {"x": drawn(shape, dtype), "like": np.zeros(count, np.float32)}
            got = program.run(feeds)
            for value, due in zip(got.values(), session.run(None, feeds), strict=True):
                assert value.dtype == due.dtype
                np.testing.assert_array_equal(value, due)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_takes_nan_for_larger_than_any_number(largest):
    x = np.array([[[1, np.nan, -np.inf, np.inf, np.nan, 1, -0.0, 0.0]]], np.float32)
    program = compile_model(best_model("float32", largest=largest))
    got = program.run({"x": x, "like": np.zeros(8, np.float32)})
    due = [1, 4, 3, 0, 5, 6, 7, 2] if largest else [2, 6, 7, 0, 5, 3, 1, 4]
    np.testing.assert_array_equal(got["places"], [[due]])
    np.testing.assert_array_equal(got["y"], x[..., due])


def test_more_elements_than_there_are_is_an_error():
    program = compile_model(best_model("float32"))
    feeds = {"x": np.zeros((2, 3, 4), np.float32), "like": np.zeros(5, np.float32)}
    with pytest.raises(BackendError, match="5 elements of 4"):
        program.run(feeds)
