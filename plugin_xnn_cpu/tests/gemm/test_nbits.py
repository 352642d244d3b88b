"""The kernel for matrices of 4 and 8 bits, and rows written into caches, on each instruction set.

Matmuls are compared with float64: 1e-5 of the largest sum of magnitudes, for fp32 accumulation.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import close, compile_model

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels

RNG = np.random.default_rng(13)
QUICK = settings(max_examples=20, deadline=None)
KINDS = {4: TensorProto.UINT4, 8: TensorProto.UINT8}


def block_matmul(columns, outputs, block, bits, *, zeros, bias=None, low=None):
    """Build a matmul with block-quantized weights; return it and the dequantized matrix."""
    blocks = columns // block
    integers = RNG.integers(0, 1 << bits, (outputs, columns)).astype(np.uint8)
    scales = (RNG.random((outputs, blocks)) + 0.01).astype(np.float32)
    points = RNG.integers(0, 1 << bits, (outputs, blocks)).astype(np.uint8)
    kind = KINDS[bits]
    initializers = [
        helper.make_tensor("q", kind, integers.shape, integers.reshape(-1)),
        numpy_helper.from_array(scales, "s"),
    ]
    names = ["q", "s"]
    if zeros:
        initializers.append(helper.make_tensor("z", kind, points.shape, points.reshape(-1)))
        names.append("z")
    nodes = [
        helper.make_node("DequantizeLinear", names, ["w"], axis=1, block_size=block),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
    ]
    last = "p"
    if bias is not None:
        initializers.append(numpy_helper.from_array(bias, "b"))
        nodes.append(helper.make_node("Add", [last, "b"], ["a"]))
        last = "a"
    if low is not None:
        initializers.append(numpy_helper.from_array(np.array(low, np.float32), "low"))
        nodes.append(helper.make_node("Clip", [last, "low"], ["c"]))
        last = "c"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", columns])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["rows", outputs])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    moved = integers.astype(float)
    if zeros:
        moved -= np.repeat(points.astype(float), block, 1)
    return model, (moved * np.repeat(scales.astype(float), block, 1)).T


@pytest.mark.parametrize("target", ["best", "avx512", "avx2", "plain"])
@QUICK
@given(
    rows=st.integers(1, 30),
    blocks=st.integers(1, 20),
    outputs=st.integers(1, 70),
    block=st.sampled_from([8, 16, 32, 48, 128]),
    bits=st.sampled_from([4, 8]),
    zeros=st.booleans(),
    bias=st.booleans(),
    low=st.sampled_from([None, 0.0]),
    threads=st.sampled_from([1, 2]),
)
def test_matmul(target, rows, blocks, outputs, block, bits, zeros, bias, low, threads):
    columns = block * blocks
    added = RNG.standard_normal(outputs).astype(np.float32) if bias else None
    model, matrix = block_matmul(columns, outputs, block, bits, zeros=zeros, bias=added, low=low)
    x = RNG.standard_normal((rows, columns)).astype(np.float32)
    expected = x.astype(float) @ matrix + (0 if added is None else added)
    if low is not None:
        expected = np.maximum(expected, low)
    most = float((np.abs(x).astype(float) @ np.abs(matrix)).max())
    before = kernels.TARGET
    kernels.TARGET = target
    try:
        with compile_model(model, threads=threads) as program:
            (plan,) = {p.kernel for p in program.explain() if p.op_type == "MatMul"}
            assert f"int{bits} (weights)" in plan
            (got,) = program.run({"x": x}).values()
    finally:
        kernels.TARGET = before
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("rows", [1, 7])
def test_nonfinite_numbers_stay_in_their_row(rows):
    model, matrix = block_matmul(32, 5, 16, 4, zeros=True)
    x = RNG.standard_normal((rows + 1, 32)).astype(np.float32)
    x[0, 3], x[0, 20] = np.nan, np.inf
    with compile_model(model) as program:
        (got,) = program.run({"x": x}).values()
    assert np.isnan(got[0]).all()
    close(got[1:], (x[1:].astype(float) @ matrix).astype(np.float32))


@pytest.mark.parametrize("rows", [1, 7])
def test_infinity_stays_infinity(rows):
    """As multiplying with the matrix does: zero points are not subtracted from accumulators."""
    model, matrix = block_matmul(32, 40, 16, 4, zeros=True)
    x = RNG.standard_normal((rows, 32)).astype(np.float32)
    x[:, 9] = np.inf
    with compile_model(model) as program, np.errstate(invalid="ignore"):
        (got,) = program.run({"x": x}).values()
        expected = x.astype(float) @ matrix
    np.testing.assert_array_equal(got, expected.astype(np.float32))


def scatter(shape, update, axis, starts, mode):
    names = ["past", "update"] + ([] if starts is None else ["starts"])
    node = helper.make_node("TensorScatter", names, ["y"], "node", axis=axis, mode=mode)
    infos = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("update", TensorProto.FLOAT, update),
    ]
    if starts is not None:
        infos.append(helper.make_tensor_value_info("starts", TensorProto.INT64, [len(starts)]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


@QUICK
@given(data=st.data(), batch=st.integers(1, 3), rank=st.integers(2, 4), circular=st.booleans())
def test_rows_in_a_cache(data, batch, rank, circular):
    axis = data.draw(st.integers(1, rank - 1))
    shape = [batch, *data.draw(st.tuples(*[st.integers(1, 6)] * (rank - 1)))]
    update = list(shape)
    update[axis] = data.draw(st.integers(1, shape[axis]))
    last = shape[axis] - 1 if circular else shape[axis] - update[axis]
    starts = data.draw(st.none() | st.lists(st.integers(0, last), min_size=batch, max_size=batch))
    mode = "circular" if circular else "linear"
    model = scatter(shape, update, axis, starts, mode)
    feeds = {
        "past": RNG.standard_normal(shape).astype(np.float32),
        "update": RNG.standard_normal(update).astype(np.float32),
    }
    if starts is not None:
        feeds["starts"] = np.array(starts, np.int64)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]
    with compile_model(model) as program:
        assert [plan.kernel for plan in program.explain()] == ["scatter rows"]
        np.testing.assert_array_equal(program.run(feeds)["y"], expected)


@pytest.mark.parametrize("start", [-1, 3, 1 << 60])
def test_rows_outside_of_a_cache(start):
    model = scatter([1, 4, 2], [1, 2, 2], 1, [0], "linear")
    feeds = {"past": np.zeros((1, 4, 2), np.float32), "update": np.ones((1, 2, 2), np.float32)}
    with compile_model(model) as program:
        with pytest.raises(BackendError, match="node"):
            program.run({**feeds, "starts": np.array([start])})
        assert program.run({**feeds, "starts": np.array([2])})["y"][0, 2:].all()
