"""Matmuls of the same rows with matrices of few bits: one kernel computes them, as explain says.

Results equal those of each matmul compiled alone, bit by bit, and are compared with float64 and
onnxruntime at the tolerances of `few_bits_kit`.
"""

from __future__ import annotations

import gc
import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import compiled, saved, weights
from few_bits_kit import bound, expected, nbits, ort, qdq, rows_of
from onnx import TensorProto, helper
from xnn_kit import compile_model

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import kernels

WIDTHS = 70, 33, 40


def merged(models):
    """Return one model of all, which read one `x`; other names get the number of their model."""
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    for field in ("node", "initializer", "output"):
        whole.graph.ClearField(field)
    for number, model in enumerate(models):
        graph = onnx.GraphProto()
        graph.CopyFrom(model.graph)
        for tensor in (*graph.initializer, *graph.output):
            tensor.name = f"{tensor.name}{number}"
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [name if name in ("", "x") else f"{name}{number}" for name in names]
        whole.graph.node.extend(graph.node)
        whole.graph.initializer.extend(graph.initializer)
        whole.graph.output.extend(graph.output)
    return whole


def matmul_kernels(program):
    return [p.kernel for p in program.explain() if p.op_type in ("MatMul", "Gemm")]


def three(build, **given):
    """Return the models of q, k and v, and of all of them, and their matrices and biases."""
    found = [build(**given, outputs=width) for width in WIDTHS]
    return [model for model, *_ in found], [rest for _, *rest in found]


FORMS = {
    f"MatMulNBits {bits} bits level {level} zeros {zeros}": (
        nbits,
        {"bits": bits, "level": level, "zeros": zeros, "bias": True},
    )
    for bits in (2, 4, 8)
    for level in (0, 4)
    for zeros in (None, "packed", "floats")
}
FORMS |= {
    f"{kind} axis {axis} {'Gemm' if gemm else 'MatMul'} level {level}": (
        qdq,
        {"kind": kind, "axis": axis, "gemm": gemm, "level": level},
    )
    for kind in ("int4", "uint4")
    for axis in (0, 1)
    for gemm in (False, True)
    for level in (0, 4)
}


@pytest.mark.parametrize("target", ["best", "avx512vnni", "avx512", "avx2", "plain"])
@pytest.mark.parametrize("name", FORMS)
def test_three_matmuls_of_the_same_rows(name, target, monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", target)
    build, given = FORMS[name]
    models, rest = three(build, columns=96, **given)
    model = merged(models)
    dynamic = given["level"] == 4
    alone = [compile_model(each) for each in models]
    for threads in (1, 2):
        with compile_model(model, threads=threads) as program:
            assert program.stats()["steps"] == 1 + 3  # one call, and a view for each result
            for kernel in matmul_kernels(program):
                assert kernel.startswith("joined fully connected in int"), kernel
                assert ("rows in blocks of int8" in kernel) == dynamic
            for rows in (1, 3, 5, 250) if threads == 2 else (1, 5):
                x = rows_of(rows, 96)
                got = program.run({"x": x})
                for number, (matrix, added) in enumerate(rest):
                    one = got[f"y{number}"]
                    assert np.array_equal(one, alone[number].run({"x": x})["y"])
                    right, most = expected(x, matrix, added)
                    if dynamic:
                        assert (np.abs(one - right) <= bound(x, matrix, 32)).all()
                    else:
                        np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-5 * most)
    for each in alone:
        each.close()


def test_against_onnxruntime():
    """MatMulNBits, and DequantizeLinear with MatMul: 1e-5 of the largest sum of magnitudes."""
    for build in (nbits, qdq):
        models, rest = three(build, columns=256)
        with compile_model(merged(models), threads=2) as program:
            x = rows_of(7, 256)
            got = program.run({"x": x})
            for number, (model, (matrix, added)) in enumerate(zip(models, rest, strict=True)):
                other, (_, most) = ort(model, x), expected(x, matrix, added)
                assert other is not None
                np.testing.assert_allclose(got[f"y{number}"], other, rtol=1e-5, atol=1e-5 * most)


def activated(name, x):
    if name == "Relu":
        return np.maximum(x, 0)
    if name == "Gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x / (1 + np.exp(-x))


def gated(build, function, *, swapped=False, **given):
    """Build act(x · gate) * (x · up); return it, and both matrices and biases."""
    found = [build(**given, outputs=70) for _ in range(2)]
    model = merged([each for each, *_ in found])
    nodes = model.graph.node
    nodes.append(helper.make_node(function, ["y0"], ["s"]))
    last = "s"
    if function == "Sigmoid":
        nodes.append(helper.make_node("Mul", ["y0", "s"], ["a"]))
        last = "a"
    nodes.append(helper.make_node("Mul", ["y1", last] if swapped else [last, "y1"], ["y"]))
    del model.graph.output[:]
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 70])
    model.graph.output.append(info)
    return model, [rest for _, *rest in found]


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("function", ["Sigmoid", "Relu", "Gelu"])
@pytest.mark.parametrize("build", [nbits, qdq])
def test_gated(build, function, level, swapped, target, monkeypatch):
    """The gate, its activation, up and their multiplication are one step.

    Where rows are quantized, an element is off by 0.02 of the largest sum of magnitudes in gate and
    in up, as `test_epilogues` has it for one.
    """
    monkeypatch.setattr(kernels, "TARGET", target)
    given = {"columns": 96, "level": level}
    model, rest = gated(build, function, swapped=swapped, **given)
    outputs = {}
    for threads in (1, 2):
        with compile_model(model, threads=threads) as program:
            assert program.stats()["steps"] == 1
            for kernel in matmul_kernels(program):
                assert kernel.startswith("gated fully connected in int4"), kernel
            for rows in (1, 4, 5, 250):
                x = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
                (got,) = program.run({"x": x}).values()
                gate, up = (expected(x, matrix, added) for matrix, added in rest)
                right = activated(function, gate[0]) * up[0]
                share = 0.02 if level else 1e-5
                most = share * (gate[1] * np.abs(up[0]).max() + up[1] * np.abs(gate[0]).max())
                np.testing.assert_allclose(got, right, rtol=share, atol=most)
                assert np.array_equal(outputs.setdefault(rows, got), got)


def test_a_gate_that_others_read_is_not_multiplied_within():
    """Both matmuls are joined, and their results are multiplied by a step of its own."""
    model, rest = gated(qdq, "Sigmoid", columns=96)
    model.graph.output.append(helper.make_tensor_value_info("y1", TensorProto.FLOAT, ["rows", 70]))
    with compile_model(model) as program:
        assert all(kernel.startswith("joined") for kernel in matmul_kernels(program))
        x = rows_of(6, 96)
        got = program.run({"x": x})
        gate, up = (expected(x, matrix, added) for matrix, added in rest)
        np.testing.assert_allclose(got["y1"], up[0], rtol=1e-5, atol=1e-5 * up[1])
        right = activated("Sigmoid", gate[0]) * up[0]
        np.testing.assert_allclose(got["y"], right, rtol=1e-5, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"block": 32}, {"block": 16}),
        ({"bits": 4}, {"bits": 8}),
        ({"level": 0}, {"level": 4}),
    ],
)
def test_other_forms_are_not_joined(first, second):
    models = [nbits(columns=96, **given)[0] for given in (first, second)]
    with compile_model(merged(models)) as program:
        assert not [kernel for kernel in matmul_kernels(program) if "joined" in kernel]
        assert program.stats()["steps"] == 2


def test_more_than_three_matmuls():
    models, rest = zip(*((m, r) for m, *r in (nbits(columns=96) for _ in range(6))), strict=True)
    with compile_model(merged(models)) as program:
        assert program.stats()["steps"] == 1 + 6
        x = rows_of(3, 96)
        got = program.run({"x": x})
        for number, (matrix, added) in enumerate(rest):
            right, most = expected(x, matrix, added)
            np.testing.assert_allclose(got[f"y{number}"], right, rtol=1e-5, atol=1e-5 * most)


def test_numbers_of_rows_that_come_again():
    """Bindings to several numbers of rows have parameters of their own, which stay in memory."""
    models, rest = three(nbits, columns=96)
    with compile_model(merged(models)) as program:
        for rows in (5, 9, 5, 40, 9, 40, 5):
            x = rows_of(rows, 96)
            got = program.run({"x": x})
            gc.collect()
            for number, (matrix, added) in enumerate(rest):
                right, most = expected(x, matrix, added)
                np.testing.assert_allclose(got[f"y{number}"], right, rtol=1e-5, atol=1e-5 * most)


def test_leading_axes_and_no_rows():
    """x is [batch, rows, columns]; a result that is empty needs no call."""
    models, rest = three(nbits, columns=96)
    model = merged(models)
    for info in (*model.graph.input, *model.graph.output):
        width = info.type.tensor_type.shape.dim[1].dim_value
        shape = ["batch", "rows", width]
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, shape))
    with compile_model(model, threads=2) as program:
        for batch, rows in ((2, 3), (1, 1), (0, 4), (5, 1)):
            x = rows_of(batch * rows, 96).reshape(batch, rows, 96)
            got = program.run({"x": x})
            for number, (matrix, added) in enumerate(rest):
                assert got[f"y{number}"].shape == (batch, rows, WIDTHS[number])
                if batch:
                    right, most = expected(x.reshape(-1, 96), matrix, added)
                    flat = got[f"y{number}"].reshape(-1, WIDTHS[number])
                    np.testing.assert_allclose(flat, right, rtol=1e-5, atol=1e-5 * most)


def test_each_matrix_is_packed_under_its_own_name(tmp_path):
    """A method that multiplies with one of them alone shares it; the second load packs nothing."""
    models, _ = three(nbits, columns=96, level=4)
    bundle = saved(tmp_path / "b.narrow", all=merged(models), one=models[1])
    x = rows_of(3, 96)
    for packs in (3, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        assert weights(program)["private"] == {}
        found = program.run({"x": x}, "all")["y1"]
        np.testing.assert_array_equal(found, program.run({"x": x}, "one")["y"])
        program.close()
        del program
        gc.collect()


def test_plans_say_so():
    """Stages print one operation, and views of its result."""
    models, _ = three(qdq, columns=96)
    bundle = Bundle({"main": ir.from_proto(merged(models))})
    options = narrowpass.CompileOptions(cache=False, threads=1)
    texts = {
        stage: XnnCpuBackend().plan_text(bundle, stage, options)
        for stage in ("fuse", "layout", "select", "pack", "bind")
    }
    assert "joined 21 (" in texts["fuse"]
    for stage in ("layout", "select"):
        assert texts[stage].count("joined_matmul(") == 1
        assert texts[stage].count("segment(") == 3
    assert "own joined fully connected (NP_NBITS_JOINED)" in texts["select"]
    assert "joined fully connected" in texts["pack"]
    assert "NP_NBITS_JOINED" in texts["bind"]


def test_a_matrix_that_does_not_fit_leaves_the_others():
    """An infinite scale: its matrix is upcast, the reason is said; others are packed in blocks."""
    models, rest = three(nbits, columns=96)
    model = merged(models)
    (scales,) = [tensor for tensor in model.graph.initializer if tensor.name == "s2"]
    array = onnx.numpy_helper.to_array(scales).copy()
    array[3, 1] = np.inf
    scales.CopyFrom(onnx.numpy_helper.from_array(array, "s2"))
    with compile_model(model) as program:
        found = matmul_kernels(program)
        assert sum("int4 (weights)" in kernel for kernel in found) == 2, found
        assert sum("a scale is not finite" in kernel for kernel in found) == 1, found
        x = rows_of(3, 96)
        got = program.run({"x": x})
        for number, (matrix, added) in enumerate(rest[:2]):
            right, most = expected(x, matrix, added)
            np.testing.assert_allclose(got[f"y{number}"], right, rtol=1e-5, atol=1e-5 * most)
