"""Block-quantized matrices that no kernel for blocks computes as float32 does: they are upcast.

With an infinite scale a weight is infinite, or NaN where its integer is the zero point.
Accumulators times that scale would be infinite where a matmul with such weights results in NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
from few_bits_kit import embedding, nbits, qdq, rows_of
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model, skip_where_nan_is_lost

from narrowpass_xnn_cpu.native import target

BUILD = {"nbits": nbits, "qdq": qdq}


def with_scale(model, number):
    """Set the scale of weights 32 to 63 of output 2."""
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "s"]
    scales = numpy_helper.to_array(tensor).copy()
    scales[(1, 2) if scales.shape[0] < scales.shape[1] else (2, 1)] = number  # block 1, output 2
    tensor.CopyFrom(numpy_helper.from_array(scales, "s"))


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("build", BUILD)
def test_results_are_those_of_float32(build, number, level):
    """NaN and infinities are where numpy's float32 matmul of the dequantized matrix has them."""
    skip_where_nan_is_lost()
    model, matrix, added = BUILD[build](level=level)
    with_scale(model, number)
    wide = matrix.astype(np.float32)
    with np.errstate(invalid="ignore"):
        wide[32:64, 2] = np.where(wide[32:64, 2] == 0, np.nan, wide[32:64, 2] * number)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert kernel.endswith(": a scale is not finite"), kernel
        for rows in (1, 9):
            x = rows_of(rows, 96)
            got = program.run({"x": x})["y"]
            with np.errstate(invalid="ignore"):
                right = x @ wide + added.astype(np.float32)
            for kind in (np.isnan, np.isposinf, np.isneginf):
                np.testing.assert_array_equal(kind(got), kind(right))
            finite = np.isfinite(right)
            most = np.abs(x).max() * np.abs(matrix).sum(0).max()
            np.testing.assert_allclose(got[finite], right[finite], rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("order", ["before", "after"])
def test_its_epilogue(order):
    """A residual and an activation, which kernels for float32 matrices without AVX2 do not fuse."""
    model, matrix, _ = qdq()
    with_scale(model, np.inf)
    nodes = model.graph.node
    nodes[-1].output[0] = "p"
    if order == "before":
        nodes.append(helper.make_node("Add", ["p", "r"], ["a"]))
        nodes.append(helper.make_node("Relu", ["a"], ["y"]))
    else:
        nodes.append(helper.make_node("Relu", ["p"], ["a"]))
        nodes.append(helper.make_node("Add", ["a", "r"], ["y"]))
    residual = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["rows", matrix.shape[1]])
    model.graph.input.append(residual)
    x, r = rows_of(5, 96), rows_of(5, matrix.shape[1])
    with compile_model(model) as program:
        got = program.run({"x": x, "r": r})["y"]
    right = x.astype(float) @ matrix
    right = np.maximum(right + r, 0) if order == "before" else np.maximum(right, 0) + r
    most = np.abs(x).max() * np.abs(matrix).sum(0).max()
    others = np.arange(matrix.shape[1]) != 2
    np.testing.assert_allclose(got[:, others], right[:, others], rtol=1e-5, atol=1e-5 * most)
    if target.current().has_fp32_gemm:  # XNNPACK's clamp loses NaN (see xnn-cpu.md)
        assert not np.isfinite(got[:, 2]).any()


def test_an_embedding():
    """It is gathered from the float32 table."""
    model, table = embedding("uint4", 32, zeros=True)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "s"]
    scales = numpy_helper.to_array(tensor).copy()
    scales[5, 1] = np.inf
    tensor.CopyFrom(numpy_helper.from_array(scales, "s"))
    right = table.astype(np.float32)
    with np.errstate(invalid="ignore"):
        right[5, 32:] = np.where(right[5, 32:] == 0, np.nan, np.sign(right[5, 32:]) * np.inf)
    with compile_model(model) as program:
        assert "gather" in [p.kernel for p in program.explain()]
        (got,) = program.run({"i": np.arange(70)}).values()
    np.testing.assert_allclose(got, right, rtol=1e-6, atol=0)
