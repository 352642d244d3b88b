"""Matrices of float8: a byte for each weight is packed, which kernels convert in registers.

Conversion is compared with ml_dtypes, for all bytes, bit by bit; matmuls with float64, at 1e-5 of
the largest sum of magnitudes for fp32 accumulation in another order, and with onnx's reference
evaluator.
"""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import onnx
import pytest
from cache_kit import compiled, saved, weights
from few_bits_kit import embedding_of, expected, rows_of, wrap
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model, skip_where_nan_is_lost

from narrowpass_xnn_cpu.native import kernels

RNG = np.random.default_rng(29)
TYPES = {
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN),
    "float8_e5m2": (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2),
}
TARGETS = ["best", "avx512", "avx2", "plain"]


def tensor(name, array):
    """Return float8 as a tensor: onnx's helper knows no ml_dtypes."""
    kind = TYPES[array.dtype.name][1]
    return helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)


def dequantized(numbers, scales, *, block=0, axis=0, transposed=False, zeros=False, level=0):
    """Build DequantizeLinear of float8 [K, N], or [N, K] and a Transpose, and a MatMul.

    Args:
        numbers: float8 [K, N].
        scales: float32: one, [N], or [K / block, N].
        block: weights of a block along K; 0 for none.
        axis: 0 for [K, N] as it is stored, 1 for [N, K].
        transposed: whether a Gemm transposes [N, K], and no Transpose.
        zeros: whether there are zero points, which are 0.
        level: 4 requests rows in int8.
    """
    columns, outputs = numbers.shape
    lies = np.ascontiguousarray(numbers.T) if axis else numbers
    given = np.ascontiguousarray(scales.T) if axis and scales.ndim == 2 else scales
    named = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    initializers = [tensor("q", lies), numpy_helper.from_array(given, "s")]
    names = ["q", "s"]
    if zeros:
        initializers.append(tensor("z", np.zeros(given.shape, numbers.dtype)))
        names.append("z")
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **named)]
    if transposed:
        nodes.append(helper.make_node("Gemm", ["x", "w"], ["y"], transB=axis))
    else:
        if axis:
            nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t" if axis else "w"], ["y"]))
    if level:
        nodes[-1].metadata_props.add(key="narrowpass.activations", value="dynamic")
    return wrap(nodes, columns, outputs, initializers, opset=23)


def all_numbers(dtype, outputs=64):
    """Return [K, N] with each byte in each column, NaN of E4M3FN left out."""
    numbers = np.arange(256, dtype=np.uint8)
    if dtype == ml_dtypes.float8_e4m3fn:
        numbers[[127, 255]] = 0
    columns = [np.roll(numbers, 5 * column) for column in range(outputs)]
    return np.stack(columns, 1).view(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 256])
@pytest.mark.parametrize("name", TYPES)
def test_every_byte_is_converted_exactly(name, rows, target, monkeypatch):
    """Rows of an identity matrix select single weights: results are they, bit by bit."""
    monkeypatch.setattr(kernels, "TARGET", target)
    numbers = all_numbers(TYPES[name][0])
    wide = numbers.astype(np.float32)
    finite = np.where(np.isfinite(wide), wide, 0).astype(numbers.dtype)
    model = dequantized(finite, np.ones(1, np.float32))
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert f"{name} (weights)" in kernel
        for start in range(0, 256, rows):
            x = np.eye(256, dtype=np.float32)[start : start + rows]
            got = program.run({"x": x})["y"]
            right = finite.astype(np.float32)[start : start + rows]
            assert np.array_equal(got + 0.0, right + 0.0)  # a sum has no -0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 5])
def test_infinity_and_nan_of_e5m2(rows, target, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", target)
    numbers = RNG.standard_normal((64, 40)).astype(ml_dtypes.float8_e5m2)
    numbers[3, 0], numbers[9, 1], numbers[5, 2] = np.inf, -np.inf, np.nan
    numbers[7, 3], numbers[8, 3] = np.inf, -np.inf
    model = dequantized(numbers, np.full(40, 0.5, np.float32))
    x = np.abs(rows_of(rows, 64)) + np.float32(0.1)
    with compile_model(model) as program:
        got = program.run({"x": x})["y"]
    assert (got[:, 0] == np.inf).all()
    assert (got[:, 1] == -np.inf).all()
    assert np.isnan(got[:, 2:4]).all()
    right = x.astype(float) @ (numbers.astype(float)[:, 4:] * 0.5)
    np.testing.assert_allclose(got[:, 4:], right, rtol=1e-5, atol=1e-5 * np.abs(right).max())


FORMS = {
    f"block {block} axis {axis} zeros {zeros} {'Gemm' if gemm else 'MatMul'}": {
        "block": block,
        "axis": axis,
        "zeros": zeros,
        "transposed": gemm,
    }
    for block in (0, 32, 128, "tensor")
    for axis in (0, 1)
    for zeros in (False, True)
    for gemm in (False, True)
}


@pytest.mark.parametrize("columns", [256, 300, 31])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TYPES)
def test_forms(name, form, columns):
    """One scale, one for each output, or one for each block; as stored or transposed."""
    given = dict(FORMS[form])
    block = given["block"]
    numbers = RNG.standard_normal((columns, 40)).astype(TYPES[name][0])
    if block == "tensor":
        given["block"], scales = 0, np.array(0.37, np.float32)
        wide = numbers.astype(float) * float(scales)
    elif block:
        blocks = -(-columns // block)
        scales = RNG.uniform(0.01, 1, (blocks, 40)).astype(np.float32)
        wide = numbers.astype(float) * np.repeat(scales.astype(float), block, 0)[:columns]
    else:
        scales = RNG.uniform(0.01, 1, 40).astype(np.float32)
        wide = numbers.astype(float) * scales
    model = dequantized(numbers, scales, **given)
    with compile_model(model, threads=2) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type in ("MatMul", "Gemm")]
        assert f"{name} (weights)" in kernel, kernel
        for rows in (1, 3, 9, 70):
            x = rows_of(rows, columns)
            right, most = expected(x, wide, 0)
            got = program.run({"x": x})["y"]
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("name", TYPES)
def test_against_the_reference_evaluator(name):
    numbers = RNG.standard_normal((96, 40)).astype(TYPES[name][0])
    scales = RNG.uniform(0.01, 1, 40).astype(np.float32)
    model = dequantized(numbers, scales)
    x = rows_of(6, 96)
    (right,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    _, most = expected(x, numbers.astype(float) * scales, 0)
    with compile_model(model) as program:
        got = program.run({"x": x})["y"]
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_nan_of_e4m3fn_is_upcast(byte):
    """`explain` has the reason; the column of the weight that is NaN is NaN."""
    skip_where_nan_is_lost()
    numbers = RNG.standard_normal((96, 40)).astype(ml_dtypes.float8_e4m3fn)
    numbers.view(np.uint8)[5, 7] = byte
    model = dequantized(numbers, np.ones(40, np.float32))
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert (
            "its float8_e4m3fn weights are upcast when they are packed: a weight is NaN" in kernel
        )
        got = program.run({"x": rows_of(3, 96)})["y"]
    assert np.isnan(got[:, 7]).all()
    assert np.isfinite(np.delete(got, 7, 1)).all()


def test_rows_stay_float32():
    """A request for rows in int8 is answered by `explain`: there is no such kernel for float8."""
    numbers = RNG.standard_normal((96, 40)).astype(ml_dtypes.float8_e4m3fn)
    model = dequantized(numbers, np.ones(40, np.float32), level=4)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert "float8_e4m3fn (weights, rows in float32: no int8 kernel takes float8)" in kernel
        x = rows_of(3, 96)
        right, most = expected(x, numbers.astype(float), 0)
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("name", TYPES)
def test_a_byte_for_each_weight(name, tmp_path):
    """Beside 4 bytes of scale for 128 weights and of bias for each output; once in the cache."""
    numbers = RNG.standard_normal((256, 64)).astype(TYPES[name][0])
    model = dequantized(numbers, np.ones((2, 64), np.float32), block=128)
    bundle = saved(tmp_path / "b.narrow", one=model, two=model)
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["private"]) == (packs, {})
        assert found["methods"]["one"]["packed_bytes"] == 64 * (256 + 2 * 4 + 4)
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("kind", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_other_float8_is_upcast(kind):
    """With other biases of the exponent: `explain` says that it is upcast."""
    numbers = RNG.standard_normal((96, 40)).astype(getattr(ml_dtypes, kind))
    onnx_kind = getattr(TensorProto, kind.upper().replace("FLOAT8_", "FLOAT8"))
    initializers = [
        helper.make_tensor("q", onnx_kind, numbers.shape, numbers.tobytes(), raw=True),
        numpy_helper.from_array(np.ones(40, np.float32), "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = wrap(nodes, 96, 40, initializers, opset=23)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert f"float32: its {kind} weights are upcast when they are packed" in kernel
        x = rows_of(3, 96)
        right, most = expected(x, numbers.astype(float), 0)
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("name", TYPES)
def test_embeddings(name):
    """Rows are gathered from bytes; each number is rounded once, as numpy multiplies it."""
    numbers = RNG.standard_normal((70, 64)).astype(TYPES[name][0])
    scales = RNG.uniform(0.01, 1, 70).astype(np.float32)
    model = embedding_of([tensor("q", numbers), numpy_helper.from_array(scales, "s")], {"axis": 0})
    at = np.array([0, 69, 31, 32, -1, -70, 5, 5])
    with compile_model(model) as program:
        assert f"gather {name}" in [p.kernel for p in program.explain()]
        (got,) = program.run({"i": at}).values()
    np.testing.assert_array_equal(got, (numbers.astype(np.float32) * scales[:, None])[at])
