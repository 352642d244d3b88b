"""Models with QuantizeLinear and DequantizeLinear; weights are dequantized when they are packed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import expected_outputs
from xnn_kit import check, compile_model, fully_connected

from narrowpass_xnn_cpu.native import target

RNG = np.random.default_rng(13)


def qdq(scale: np.ndarray, zero: np.ndarray | None) -> onnx.ModelProto:
    """Build a convolution with int8 weights, whose input and output are quantized too."""
    weights = {
        "w": RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": scale,
        "s": np.array(0.05, np.float32),
        "z": np.array(7, np.uint8),
    }
    names = ["w", "ws"]
    if zero is not None:
        weights["wz"] = zero
        names.append("wz")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", names, ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


PER_CHANNEL = np.float32([0.001, 0.01, 0.02, 0.005])


@pytest.mark.parametrize(
    ("zero", "kernel"),
    [
        (None, "convolution int8"),
        (np.int8([0, 1, -3, 0]), "convolution int8"),
    ],
    ids=["", "zero points"],
)
def test_quantized_convolution(zero, kernel):
    model = qdq(PER_CHANNEL, zero)
    program = compile_model(model)
    plans = {plan.node or plan.op_type: plan for plan in program.explain()}
    assert not any(plan.reason for plan in plans.values())
    kernels = {plan.op_type: plan.kernel for plan in program.explain()}
    assert kernels["Conv"].removeprefix("xnn ") == kernel
    assert "packed with the weights" in {plan.kernel for plan in program.explain()}
    x = (RNG.standard_normal((2, 3, 6, 6)) * 4).astype(np.float32)
    expected = check_steps(model, program, x)
    assert expected > 0.9


def check_steps(model, program, x) -> float:
    """Report the share of equal bytes; others are one step off, where accumulators round."""
    right = expected_outputs(model, {"x": x})["y"].astype(int)
    got = program.run({"x": x})["y"]
    assert got.dtype == np.uint8
    difference = np.abs(got.astype(int) - right)
    assert difference.max() <= 1
    return float((difference == 0).mean())


@pytest.mark.xnnpack
def test_weights_that_are_cast():
    """A model whose weights are stored in half the size: the Cast is done when they are packed."""
    weight = RNG.standard_normal((6, 5)).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    program = check(model, {"x": RNG.standard_normal((3, 6)).astype(np.float32)})
    kernels = [plan.kernel for plan in program.explain()]
    processor = target.current()
    streams = processor.has_fp32_gemm and processor.has_fma
    assert kernels == [
        "few rows" if streams else fully_connected(),
        "packed with the weights",
    ]
