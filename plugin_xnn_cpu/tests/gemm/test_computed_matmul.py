"""Matmul of two computed operands, against numpy's of float64 and against onnxruntime.

Elements may be off by 1e-5 of the largest sum of magnitudes: the rounding errors of fp32
accumulation of up to a thousand terms in another order.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import narrowpass
from narrowpass.errors import BackendError
from narrowpass_testing import model_from_text
from narrowpass_xnn_cpu.native import kernels

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(170)
LEVELS = ("plain", "avx2", "avx512")
DIMS = "ABCDEF"

SHAPES = [
    ((12, 128, 64), (12, 64, 128)),
    ((1, 1, 64), (1, 64, 512)),
    ((8, 1, 64), (8, 64, 513)),
    ((64, 16, 16), (64, 16, 16)),
    ((6, 49, 32), (6, 32, 49)),
    ((6, 49, 49), (6, 49, 32)),
    ((1, 1, 1000), (1, 1000, 1)),
    ((2, 300, 77), (2, 77, 1)),
    ((3, 77, 1), (3, 1, 50)),
    ((2, 3, 5, 7), (1, 3, 7, 9)),
    ((2, 1, 5, 7), (3, 7, 9)),
    ((2, 3, 5, 7), (7, 11)),
    ((5, 7), (2, 3, 7, 11)),
    ((2, 1, 3, 1, 4, 5), (1, 3, 1, 2, 5, 6)),
    ((7,), (7,)),
    ((7,), (3, 7, 5)),
    ((3, 5, 7), (7,)),
    ((1, 70, 1000), (1, 1000, 130)),
    ((4, 30, 513), (4, 513, 65)),
    ((70, 300), (300, 1029)),
]


def load(text, threads=1):
    return narrowpass.load(narrowpass.build(model_from_text(text), ""), "xnn-cpu", threads=threads)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def matmul_text(first, second, nodes="z = MatMul(x, y)", rank=None):
    rank = np.matmul(np.zeros(first), np.zeros(second)).ndim if rank is None else rank
    a, b = (",".join(DIMS[i] + str(n) for i in range(len(s))) for n, s in ((0, first), (1, second)))
    out = f"float[{','.join(DIMS[:rank])}]" if rank else "float"
    return f"g (float[{a}] x, float[{b}] y) => ({out} z) {{ {nodes} }}"


def assert_near(got, x, y):
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    bound = np.matmul(np.abs(x).astype(np.float64), np.abs(y).astype(np.float64))
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= 1e-5 * bound.max(initial=0)).all()


def kernels_of(program):
    return {plan.kernel for plan in program.explain() if plan.kernel}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("first", "second"), SHAPES, ids=str)
def test_shapes_and_broadcasts(first, second, level, threads, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", level)
    x, y = floats(*first), floats(*second)
    with load(matmul_text(first, second), threads) as program:
        assert_near(program.run({"x": x, "y": y})["z"], x, y)
        assert kernels_of(program) == {"matmul"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 13, 25, 40])
@pytest.mark.parametrize("turned", ["", "x", "y", "xy"])
def test_transposes_are_folded(turned, rows, level, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", level)
    depth, columns = 83, 37
    x, y = floats(2, rows, depth), floats(2, depth, columns)
    feeds = {"x": x, "y": y}
    nodes, names = "", []
    for name in "xy":
        # A value that is computed in the partition: one from outside could have any layout.
        nodes += f"{name}1 = Neg({name}) "
        if name in turned:
            feeds[name] = np.ascontiguousarray(feeds[name].swapaxes(1, 2))
            nodes += f"{name}2 = Transpose <perm = [0, 2, 1]> ({name}1) "
        names.append(f"{name}{2 if name in turned else 1}")
    nodes += f"z = MatMul({', '.join(names)})"
    text = matmul_text(x.shape, y.shape, nodes)
    with load(text) as program:
        assert_near(program.run(feeds)["z"], x, y)
        assert not any("transpose" in kernel for kernel in kernels_of(program))


def test_result_is_written_as_the_transpose_after_it_wants():
    nodes = "p = MatMul(x, y) z = Transpose <perm = [0, 2, 1, 3]> (p)"
    x, y = floats(2, 3, 5, 7), floats(2, 3, 7, 9)
    with load(matmul_text(x.shape, y.shape, nodes)) as program:
        got = program.run({"x": x, "y": y})["z"]
        assert not any("transpose" in kernel for kernel in kernels_of(program))
    assert_near(got.swapaxes(1, 2), x, y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("columns", [1, 5, 16, 50])
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_scale_bias_residual_and_function_end_it(rows, columns, level, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", level)
    depth = 300
    bias = floats(columns)
    values = ", ".join(map(str, bias.tolist()))
    text = f"""g (float[2, {rows}, {depth}] x, float[2, {depth}, {columns}] y,
                  float[2, {rows}, {columns}] r) => (float[2, {rows}, {columns}] z)
        <float scale = {{0.125}}, float[{columns}] bias = {{{values}}}> {{
        p = MatMul(x, y) s = Mul(p, scale) b = Add(s, bias) q = Add(b, r) z = Relu(q) }}"""
    x, y, r = floats(2, rows, depth), floats(2, depth, columns), floats(2, rows, columns)
    with load(text) as program:
        got = program.run({"x": x, "y": y, "r": r})["z"]
        assert kernels_of(program) == {"matmul"}
    exact = np.maximum(np.matmul(x, y, dtype=np.float64) * 0.125 + bias + r, 0)
    assert np.abs(got - exact).max() < 1e-5 * max(1, exact.max())  # all may be negative


def test_division_after_it_is_its_scale():
    nodes = "c = Constant <value = float {8.0}> () p = MatMul(x, y) z = Div(p, c)"
    x, y = floats(2, 5, 7), floats(2, 7, 9)
    with load(matmul_text(x.shape, y.shape, nodes)) as program:
        got = program.run({"x": x, "y": y})["z"]
        assert kernels_of(program) == {"matmul"}
    assert_near(got * 8, x, y)


@pytest.mark.parametrize("beta", [1, 0, -2.5])
@pytest.mark.parametrize("added", ["", "[9]", "[1]", "[5, 9]", "[5, 1]"])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_of_computed_matrices(turned, added, beta):
    x, y = floats(5, 7), floats(7, 9)
    shapes = [(7, 5) if turned[0] else (5, 7), (9, 7) if turned[1] else (7, 9)]
    third = f", float{added} c" if added else ""
    text = f"""g (float{list(shapes[0])} x, float{list(shapes[1])} y{third}) => (float[5, 9] z) {{
        z = Gemm <alpha = 0.5, beta = {float(beta)}, transA = {turned[0]}, transB = {turned[1]}>
            (x, y{", c" if added else ""}) }}"""
    feeds = {"x": x.T.copy() if turned[0] else x, "y": y.T.copy() if turned[1] else y}
    exact = 0.5 * np.matmul(x, y, dtype=np.float64)
    if added:
        feeds["c"] = floats(*(int(n) for n in added.strip("[]").split(",")))
        exact = exact + beta * feeds["c"]
    with load(text) as program:
        got = program.run(feeds)["z"]
        assert "Gemm" not in {plan.op_type for plan in program.explain() if plan.reason}
    assert np.abs(got - exact).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("first", "second"), [((3, 8, 64), (3, 64, 70)), ((1, 1, 64), (1, 64, 70))]
)
def test_nonfinite_numbers_agree_with_onnxruntime(first, second, level, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", level)
    x, y = floats(*first), floats(*second)
    x[..., 3], x[..., -1, 60], y[..., 5, 2], y[..., 6, -1] = -np.inf, np.inf, np.inf, np.nan
    text = matmul_text(first, second)
    proto = ir.to_proto(model_from_text(text)).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x, "y": y})
    with load(text) as program:
        got = program.run({"x": x, "y": y})["z"]
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])


def test_sizes_change_between_runs():
    with load(matmul_text((2, 1, 1), (2, 1, 1)), 2) as program:
        for m, k, n in [(3, 5, 7), (1, 0, 4), (40, 300, 90), (0, 3, 2), (3, 5, 0), (1, 9, 1)]:
            x, y = floats(2, m, k), floats(2, k, n)
            assert_near(program.run({"x": x, "y": y})["z"], x, y)
        with pytest.raises(BackendError, match="do not fit together"):
            program.run({"x": floats(2, 3, 4), "y": floats(2, 5, 3)})
        with pytest.raises(BackendError, match="broadcast"):
            program.run({"x": floats(2, 3, 4), "y": floats(3, 4, 3)})
        assert_near(program.run({"x": x, "y": y})["z"], x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_operands_are_upcast(dtype):
    text = matmul_text((2, 5, 40), (2, 40, 9)).replace("float[", f"{dtype}[")
    kind = ir.DataType.FLOAT16.numpy() if dtype == "float16" else ir.DataType.BFLOAT16.numpy()
    x, y = floats(2, 5, 40).astype(kind), floats(2, 40, 9).astype(kind)
    with load(text) as program:
        got = program.run({"x": x, "y": y})["z"]
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    # Rounded once, to 11 and 8 bits.
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    assert np.abs(got.astype(np.float64) - exact).max() < 1.01 * unit * np.abs(exact).max()
