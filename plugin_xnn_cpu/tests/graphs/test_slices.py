"""Slices whose bounds are fed, or constant, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import session_of

import narrowpass

FAR = (-(1 << 40), -6, -5, -4, -1, 0, 3, 4, 5, 1 << 40)
X = np.arange(4, dtype=np.float32)


def sliced(fed):
    """Return a model of a Slice over [4], whose bounds and step are fed or constant."""
    names = ["starts", "ends", "axes", "steps"]
    infos = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in names]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    node = helper.make_node("Slice", ["x", *names], ["y"])
    constants = [
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in zip(names, fed or (), strict=False)
    ]
    inputs = [x] if fed else [x, *infos]
    graph = helper.make_graph([node], "slices", inputs, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def runtime():
    """Return onnxruntime's results of a slice."""
    session = session_of(sliced(None), optimized=True)
    return lambda feeds: session.run(None, feeds)[0]


def feeds_of(start, end, step):
    found = {"starts": start, "ends": end, "axes": 0, "steps": step}
    return {"x": X} | {name: np.array([value], np.int64) for name, value in found.items()}


@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2])
def test_bounds_that_are_fed(runtime, step):
    with narrowpass.load(sliced(None), "xnn-cpu") as program:
        for start in FAR:
            for end in FAR:
                feeds = feeds_of(start, end, step)
                np.testing.assert_array_equal(program.run(feeds)["y"], runtime(feeds))


@pytest.mark.parametrize("step", [-2, -1, 1])
def test_bounds_that_are_constant(runtime, step):
    for start in FAR:
        for end in FAR[::2]:
            model = sliced((start, end, 0, step))
            with narrowpass.load(model, "xnn-cpu") as program:
                wanted = runtime(feeds_of(start, end, step))
                np.testing.assert_array_equal(program.run({"x": X})["y"], wanted)
