"""MatMul with a constant of several matrices in blocks, as those of experts: they stay packed.

Results are compared with float64 at the tolerances of `few_bits_kit`, and with onnxruntime.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from few_bits_kit import BITS, OFFSETS, bound, initializer, rows_of
from onnx import TensorProto, helper
from xnn_kit import compile_model

onnxruntime = pytest.importorskip("onnxruntime")  # conftest.py stops CI without it

RNG = np.random.default_rng(37)
COLUMNS = 96


def experts(
    count=4, outputs=40, kind="int4", *, axis=1, block=32, zeros=False, level=0, x=None, ends=()
):
    """Build x · w for w [E, K, N] in blocks; return it and the matrices in float64.

    Args:
        count: E.
        outputs: N.
        kind: of the integers.
        axis: 1 for [E, K, N] as it is stored, 2 for [E, N, K] and a Transpose.
        block: along K.
        zeros: whether there are zero points.
        level: 4 requests rows in int8.
        x: dimensions of the rows; [rows, K] by default.
        ends: nodes after the matmul's result ``p``; the last one computes ``y``.
    """
    low, blocks = OFFSETS[kind], COLUMNS // block
    numbers = RNG.integers(low, low + (1 << BITS[kind]), (count, outputs, COLUMNS))
    scales = RNG.uniform(0.01, 0.02, (count, outputs, blocks)).astype(np.float32)
    points = RNG.integers(low, low + (1 << BITS[kind]), (count, outputs, blocks)) if zeros else 0
    wide = numbers - (np.repeat(points, block, 2) if zeros else 0)
    wide = (wide * np.repeat(scales.astype(float), block, 2)).transpose(0, 2, 1)

    def lying(array):
        return array.transpose(0, 2, 1) if axis == 1 else array

    parts = [initializer("q", lying(numbers), kind), initializer("s", lying(scales))]
    if zeros:
        parts.append(initializer("z", lying(points), kind))
    names = [part.name for part in parts]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=axis, block_size=block)]
    if axis == 2:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1]))
    last = "p" if ends else "y"
    nodes.append(helper.make_node("MatMul", ["x", "w" if axis == 1 else "t"], [last]))
    if level:
        nodes[-1].metadata_props.add(key="narrowpass.activations", value="dynamic")
    nodes += ends
    dims = ["rows", COLUMNS] if x is None else x
    result = [*dims[:-3], count, "rows", outputs]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        parts,
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), wide


def kernel_of(program):
    (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
    return kernel


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("kind", ["int4", "uint4", "int8"])
def test_forms(kind, axis, zeros, level, own_rows):
    """The same rows for all matrices, or rows of its own for each; N fills panels or does not."""
    for outputs in (40, 64):
        dims = [4, "rows", COLUMNS] if own_rows else ["rows", COLUMNS]
        model, wide = experts(4, outputs, kind, axis=axis, zeros=zeros, level=level, x=dims)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for threads in (1, 2):
            with compile_model(model, threads=threads) as program:
                rows_too = ", rows in blocks of int8" if level else ""
                right = f"fully connected of 4 matrices in int{BITS[kind]} (weights{rows_too})"
                assert kernel_of(program) == right
                for rows in (1, 3, 9):
                    x = rows_of(rows * (4 if own_rows else 1), COLUMNS)
                    x = x.reshape(4, rows, COLUMNS) if own_rows else x
                    got = program.run({"x": x})["y"]
                    each = x if own_rows else np.broadcast_to(x, (4, *x.shape))
                    for number in range(4):
                        limit = bound(each[number], wide[number], 32) if level else None
                        right = each[number].astype(float) @ wide[number]
                        most = (np.abs(each[number]).astype(float) @ np.abs(wide[number])).max()
                        limit = 1e-5 * most if limit is None else limit
                        assert (np.abs(got[number] - right) <= limit).all()
                    if not level:
                        (other,) = session.run(None, {"x": x})
                        np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-4)


def test_a_batch_of_one():
    model, wide = experts(3, x=[1, "rows", COLUMNS])
    with compile_model(model) as program:
        assert "3 matrices in int4" in kernel_of(program)
        x = rows_of(6, COLUMNS)[None]
        np.testing.assert_allclose(program.run({"x": x})["y"], x @ wide, rtol=1e-5, atol=1e-4)
        assert program.run({"x": x[:, :0]})["y"].shape == (3, 0, 40)


@pytest.mark.parametrize("ends", ["Relu", "Add", "Add and Relu"])
def test_epilogues(ends):
    """An activation is part of the matmul; an addition, which broadcasts, is a step after it."""
    nodes = []
    if "Add" in ends:
        nodes.append(helper.make_node("Add", ["p", "r"], ["y" if ends == "Add" else "a"]))
    if "Relu" in ends:
        nodes.append(helper.make_node("Relu", ["a" if nodes else "p"], ["y"]))
    model, wide = experts(4, ends=nodes)
    if "Add" in ends:
        info = helper.make_tensor_value_info("r", TensorProto.FLOAT, [4, "rows", 40])
        model.graph.input.append(info)
    with compile_model(model) as program:
        assert kernel_of(program).startswith("fully connected of 4 matrices")
        for rows in (1, 7):
            x, r = rows_of(rows, COLUMNS), RNG.standard_normal((4, rows, 40)).astype(np.float32)
            feeds = {"x": x, "r": r} if "Add" in ends else {"x": x}
            right = x.astype(float) @ wide
            right = right + r if "Add" in ends else right
            right = np.maximum(right, 0) if "Relu" in ends else right
            got = program.run(feeds)["y"]
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dims", [[4, 3, "rows", COLUMNS], ["batch", "rows", COLUMNS]])
def test_other_batches_are_upcast(dims):
    """Rows whose leading axes are not known to be those of the constant."""
    model, wide = experts(3, x=dims)
    with compile_model(model) as program:
        assert kernel_of(program) == "matmul"
        x = RNG.standard_normal((*(4, 3)[: len(dims) - 2], 2, COLUMNS)).astype(np.float32)
        x = x[:3] if len(dims) == 3 else x
        x = np.repeat(x[:1], 3, 0) if len(dims) == 3 else x
        np.testing.assert_allclose(program.run({"x": x})["y"], x @ wide, rtol=1e-5, atol=1e-4)


def test_a_scale_that_is_infinite():
    """All are upcast, and `explain` has the reason."""
    model, _ = experts(4)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "s"]
    scales = np.full(tensor.dims, 0.5, np.float32)
    scales[2, 1, 5] = np.inf
    tensor.CopyFrom(initializer("s", scales))
    with compile_model(model) as program:
        assert kernel_of(program) == "matmul in float32: a scale is not finite"
        got = program.run({"x": rows_of(3, COLUMNS)})["y"]
    assert not np.isfinite(got[2, :, 5]).any()
    assert np.isfinite(np.delete(got, 5, 2)).all()


def test_what_is_packed(tmp_path):
    """Half a byte for a weight, 4 for a scale and a bias; once, whatever method multiplies."""
    model, _ = experts(4, 64)
    bundle = saved(tmp_path / "b.narrow", one=model, two=model)
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["private"]) == (packs, {})
        assert found["methods"]["one"]["packed_bytes"] == 4 * 64 * (COLUMNS // 2 + 3 * 4 + 4)
        program.close()
        del program
        gc.collect()
