"""Activations quantized with a scale for each channel, as NNCF writes them: as onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(12)


def model_of(kind, shape, axis, before=()):
    count = shape[axis]
    limits = np.iinfo(kind)
    constants = {
        "s": RNG.uniform(0.01, 0.1, count).astype(np.float32),
        "z": RNG.integers(limits.min, limits.max + 1, count).astype(kind),
    }
    given = "a" if before else "x"
    nodes = [
        *before,
        helper.make_node("QuantizeLinear", [given, "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(model, x, tolerance=0.0):
    (right,) = onnxruntime_results(model, {"x": x})
    with compile_model(model, threads=2) as program:
        assert not [p for p in program.explain() if p.reason or p.kernel.startswith("numpy")]
        assert "fake quantize" in [plan.kernel for plan in program.explain()]
        got = program.run({"x": x})["y"]
    assert np.abs(got - right).max(initial=0) <= tolerance


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 5, 7, 9), 1), ((2, 5, 7, 9), -1), ((0, 3, 4), 1), ((1, 40, 60, 60), 1), ((3, 33), -1)],
)
def test_floats_are_rounded_by_channels(kind, shape, axis):
    x = (RNG.standard_normal(shape) * 5).astype(np.float32)
    x.reshape(-1)[:3] = [np.inf, -np.inf, -0.0][: x.size]
    check(model_of(kind, shape, axis), x)


def test_channels_last_is_kept_after_a_pool():
    """XNNPACK keeps images with channels last: a maximum is exact, so are results."""
    pool = helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2])
    x = (RNG.standard_normal((2, 19, 8, 6)) * 5).astype(np.float32)
    check(model_of("int8", x.shape, 1, [pool]), x)


def test_weights_whose_scales_have_axes_behind_their_channels():
    """As NNCF's compress_weights writes them: [channels, 1, 1]. Against the numbers themselves."""
    weight = RNG.integers(0, 256, (6, 3, 3, 3)).astype(np.uint8)
    scale = RNG.uniform(0.01, 0.1, (6, 1, 1)).astype(np.float32)
    zero = RNG.integers(0, 256, (6, 1, 1)).astype(np.uint8)
    real = (weight.astype(np.float32) - zero[..., None].astype(np.float32)) * scale[..., None]

    def model(nodes, constants):
        graph = helper.make_graph(
            [*nodes, helper.make_node("Conv", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 6, 6])],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    x = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    node = helper.make_node("DequantizeLinear", ["w8", "s", "z"], ["w"], axis=0)
    (right,) = onnxruntime_results(model([], {"w": real}), {"x": x})
    with compile_model(model([node], {"w8": weight, "s": scale, "z": zero})) as program:
        got = program.run({"x": x})["y"]
    assert np.abs(got - right).max() <= 1e-5 * np.abs(right).max()


@pytest.mark.parametrize("axis", [0, 1])
def test_the_last_block_of_a_matrix_may_be_shorter(axis):
    """As onnxruntime's 4-bit quantizer writes matrices whose depth is no whole number of blocks."""
    weight = RNG.integers(-8, 8, (40, 24)).astype(np.int8)
    count = -(-weight.shape[axis] // 16)
    scale = RNG.uniform(0.01, 0.1, (count, 24) if axis == 0 else (40, count)).astype(np.float32)
    real = weight * np.repeat(scale, 16, axis).take(np.arange(weight.shape[axis]), axis)
    nodes = [
        helper.make_node("DequantizeLinear", ["w8", "s"], ["w"], axis=axis, block_size=16),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 24])],
        [numpy_helper.from_array(weight, "w8"), numpy_helper.from_array(scale, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = RNG.standard_normal((3, 40)).astype(np.float32)
    with compile_model(model) as program:
        got = program.run({"x": x})["y"]
    right = x.astype(np.float64) @ real.astype(np.float64)
    assert np.abs(got - right).max() <= 1e-5 * np.abs(right).max()
