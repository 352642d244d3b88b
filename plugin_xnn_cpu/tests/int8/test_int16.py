"""QuantizeLinear and DequantizeLinear of 16 bits, against onnxruntime: equal bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contrib_kit import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

onnxruntime = pytest.importorskip("onnxruntime")

KINDS = {"int16": TensorProto.INT16, "uint16": TensorProto.UINT16}
CASES = [("int16", 0), ("int16", -300), ("uint16", 32768), ("uint16", 0), ("uint16", 65535)]
EDGES = np.array(
    [0, -0.0, 0.005, 0.015, -0.005, 1e9, -1e9, np.inf, -np.inf, 327.67, -327.685], np.float32
)


def model_of(kind, zero, nodes, given, produced, shape):
    constants = {
        "s": np.array(0.01, np.float32),
        "z": np.array(zero, kind),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", given, shape)],
        [helper.make_tensor_value_info("y", produced, shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def quantize(given="x", produced="q"):
    return helper.make_node("QuantizeLinear", [given, "s", "z"], [produced])


def dequantize(given="q", produced="y"):
    return helper.make_node("DequantizeLinear", [given, "s", "z"], [produced])


def is_native(program):
    return not [p for p in program.explain() if p.reason or p.kernel.startswith("numpy")]


def check(model, x, kernel, threads=1):
    (right,) = onnxruntime_results(model, {"x": x})
    with compile_model(model, threads=threads) as program:
        assert [plan.kernel for plan in program.explain()].count(kernel) >= 1
        assert is_native(program)
        got = program.run({"x": x})["y"]
    assert got.dtype == right.dtype
    np.testing.assert_array_equal(got, right)
    if kernel == "fake quantize":  # an integer has no -0
        np.testing.assert_array_equal(np.signbit(got), np.signbit(right))


def inputs(count):
    x = np.random.default_rng(3).standard_normal(count).astype(np.float32) * 300
    x[: min(count, len(EDGES))] = EDGES[:count]
    return x


@pytest.mark.parametrize(("kind", "zero"), CASES)
@pytest.mark.parametrize("count", [0, 1, 37, 70_000])
def test_fake_quantization_is_one_pass(kind, zero, count):
    floats = TensorProto.FLOAT
    model = model_of(kind, zero, [quantize(), dequantize()], floats, floats, ["N"])
    check(model, inputs(count), "fake quantize", threads=2)


@pytest.mark.parametrize(("kind", "zero"), CASES)
def test_integers_with_other_readers(kind, zero):
    x = inputs(1000)
    model = model_of(kind, zero, [quantize(produced="y")], TensorProto.FLOAT, KINDS[kind], ["N"])
    check(model, x, "quantize")
    integers = np.random.default_rng(4).integers(0, 1 << 16, 999).astype(np.uint16).view(kind)
    model = model_of(kind, zero, [dequantize("x")], KINDS[kind], TensorProto.FLOAT, ["N"])
    check(model, integers, "dequantize")


@pytest.mark.parametrize("kind", KINDS)
def test_nan_becomes_the_least_integer(kind):
    model = model_of(kind, 5, [quantize(produced="y")], TensorProto.FLOAT, KINDS[kind], [2])
    with compile_model(model) as program:
        got = program.run({"x": np.array([np.nan, 0], np.float32)})["y"]
    assert got.tolist() == [np.iinfo(kind).min, 5]


def test_integers_with_two_readers_are_kept():
    nodes = [quantize(), dequantize(produced="a"), dequantize(produced="b")]
    nodes.append(helper.make_node("Neg", ["b"], ["c"]))
    nodes.append(helper.make_node("Mul", ["a", "c"], ["y"]))
    model = model_of("int16", 7, nodes, TensorProto.FLOAT, TensorProto.FLOAT, [3, 5])
    check(model, inputs(15).reshape(3, 5).clip(-99, 99), "dequantize")


def test_a_convolution_between_conversions_of_16_bits_is_native():
    """As onnxruntime's tools quantize activations to 16 bits: weights stay bytes."""
    rng = np.random.default_rng(5)
    weight = rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    nodes = [
        quantize(),
        dequantize(produced="a"),
        helper.make_node("DequantizeLinear", ["w8", "ws"], ["w"]),
        helper.make_node("Conv", ["a", "w"], ["c"], pads=[1] * 4),
        quantize("c", "q2"),
        dequantize("q2"),
    ]
    model = model_of("uint16", 32768, nodes, TensorProto.FLOAT, TensorProto.FLOAT, [1, 3, 9, 9])
    model.graph.initializer.append(numpy_helper.from_array(weight, "w8"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.01, np.float32), "ws"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.checker.check_model(model)
    x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    (right,) = onnxruntime_results(model, {"x": x})
    with compile_model(model) as program:
        assert is_native(program)
        got = program.run({"x": x})["y"]
    assert np.abs(got - right).max() <= 0.0101  # one step: fp32 accumulation in another order
