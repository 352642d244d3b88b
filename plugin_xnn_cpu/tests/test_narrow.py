"""Narrow floats: stored as such, computed with in float32, converted to nearest even."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from xnn_kit import compile_model

from narrowpass import Bundle, CompileOptions
from narrowpass.reference import ReferenceBackend

RNG = np.random.default_rng(9)
NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
KINDS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
# Half a unit in the last place of each, times a few roundings that one of both does not do.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}


def cast(source: int, target: int) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", source, ["N"])
    result = helper.make_tensor_value_info("y", target, ["N"])
    node = helper.make_node("Cast", ["x"], ["y"], to=target)
    return helper.make_model(helper.make_graph([node], "g", [given], [result]))


@pytest.mark.parametrize("name", NARROW)
def test_widening_all_there_are(name):
    given = np.arange(65536, dtype=np.uint16).view(NARROW[name])
    program = compile_model(cast(KINDS[name], TensorProto.FLOAT))
    assert not any(plan.reason for plan in program.explain())
    got, right = program.run({"x": given})["y"], given.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(right))
    known = ~np.isnan(right)
    np.testing.assert_array_equal(got[known].view(np.uint32), right[known].view(np.uint32))


@np.errstate(all="ignore")
def floats() -> np.ndarray:
    """Give all narrow numbers, the middles between them, their neighbours, and random bits."""
    parts = [RNG.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)]
    for dtype in NARROW.values():
        every = np.arange(65536, dtype=np.uint16).view(dtype)
        every = np.unique(every[np.isfinite(every)].astype(np.float64))
        middles = ((every[1:] + every[:-1]) / 2).astype(np.float32)
        exact = every.astype(np.float32)
        for part in (exact, middles):
            parts += [part, np.nextafter(part, np.inf, dtype=np.float32)]
            parts += [np.nextafter(part, -np.inf, dtype=np.float32)]
    parts.append(
        np.float32([np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -65520, 1e38, 0, -0.0])
    )
    return np.concatenate(parts)


@pytest.mark.parametrize("name", NARROW)
def test_rounding(name):
    given = floats()
    program = compile_model(cast(TensorProto.FLOAT, KINDS[name]))
    got = program.run({"x": given})["y"]
    with np.errstate(over="ignore", invalid="ignore"):
        right = given.astype(NARROW[name])
    assert got.dtype == NARROW[name]
    number = ~np.isnan(given)
    np.testing.assert_array_equal(got[number].view(np.uint16), right[number].view(np.uint16))
    assert np.isnan(got[~number].astype(np.float32)).all()


def network(name: str) -> ir.Model:
    """Make a small network with an embedding, all of it of one narrow type."""
    kind = KINDS[name]

    def tensor(key, *shape):
        array = (RNG.standard_normal(shape) * 0.3).astype(NARROW[name])
        return onnx.numpy_helper.from_array(array, key)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["e"]),
        helper.make_node("AveragePool", ["e"], ["p"], kernel_shape=[3, 3]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["h"]),
        helper.make_node("Add", ["h", "c"], ["k"]),
        helper.make_node("Softmax", ["k"], ["y"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", kind, ["N", 3, 8, 8]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info(n, kind, None) for n in ("y", "rows")],
        [
            tensor("w", 4, 3, 3, 3),
            tensor("b", 4),
            tensor("half"),
            tensor("m", 64, 5),
            tensor("c", 5),
            tensor("table", 7, 4),
        ],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_network(name):
    model = network(name)
    program = compile_model(model)
    assert all(p.reason == "" for p in program.explain())
    assert {p.partition for p in program.explain()} == {0}
    convolution = program.explain()[0]
    assert convolution.dtype == name
    assert convolution.kernel == "xnn convolution in float32"
    reference = ReferenceBackend().compile(Bundle({"main": model}), CompileOptions())
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 3, 8, 8)).astype(NARROW[name])
        feeds = {"x": x, "ids": np.array([6, 0])}
        got = program.run(feeds)
        for key, right in reference.run(feeds).items():
            assert got[key].dtype == right.dtype == NARROW[name]
            one, other = got[key].astype(np.float32), right.astype(np.float32)
            limit = TOLERANCES[name] * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)
        np.testing.assert_array_equal(got["rows"], reference.run(feeds)["rows"])


@pytest.mark.parametrize("name", NARROW)
def test_kept_and_given_arrays(name):
    model = network(name)
    program = compile_model(model, keep=("a",))
    feeds = {"x": np.ones((1, 3, 8, 8), NARROW[name]), "ids": np.array([1, 1])}
    out = {"y": np.zeros((1, 5), NARROW[name])}
    results = program.run(feeds, outputs=["a", "y"], out=out)
    assert results["a"].dtype == NARROW[name]
    assert results["y"] is out["y"]
    np.testing.assert_array_equal(results["y"], program.run(feeds)["y"])
