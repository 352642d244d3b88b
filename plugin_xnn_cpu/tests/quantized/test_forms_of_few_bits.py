"""Every form in which tools write matrices of few bits: what runs, how it is packed, its results.

Results are compared with float64, and with onnxruntime where it runs the form; `few_bits_kit` has
the tolerances.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from few_bits_kit import CAST, FORMS, expected, initializer, ort, qdq, rows_of, wrap
from onnx import TensorProto, helper
from xnn_kit import compile_model


@pytest.mark.parametrize("name", FORMS)
def test_form(name):
    build, given = FORMS[name]
    model, matrix, added = build(**given)
    with compile_model(model) as program:
        (plan,) = [p for p in program.explain() if p.op_type in ("MatMul", "Gemm")]
        bits = 8 if "int8" in name or "8 bits" in name else 2 if "2 bits" in name else 4
        assert f"int{bits} (weights)" in plan.kernel, plan
        assert "float32" not in plan.kernel
        for rows in (1, 3, 9):
            x = rows_of(rows, matrix.shape[0])
            right, most = expected(x, matrix, added)
            (got,) = program.run({"x": x}).values()
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)
            other = ort(model, x)
            if other is not None:
                share = 1e-3 if "float16" in name else 1e-5
                np.testing.assert_allclose(got, other, rtol=share, atol=share * most)


@pytest.mark.parametrize("name", CAST)
def test_cast_scales_are_packed_as_float16(tmp_path, name):
    """Two bytes less for each scale of 40 outputs, filled up to 2 panels of 32, and 3 blocks."""
    build, given = FORMS[name]
    sizes = []
    for cast in (False, True):
        model, *_ = build(**{**given, "cast": cast})
        program = compiled(saved(tmp_path / f"{cast}.narrow", one=model), tmp_path / "cache")
        sizes.append(weights(program)["methods"]["one"]["packed_bytes"])
        program.close()
    assert sizes[0] - sizes[1] == 2 * 64 * 3


def test_a_factor_of_the_matrix():
    """Gemm's alpha scales the scales: the matrix is packed as it is stored."""
    model, matrix, _ = qdq(gemm=True)
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", 0.5))
    x = rows_of(5, 96)
    with compile_model(model) as program:
        kernel = [p.kernel for p in program.explain() if p.op_type == "Gemm"]
        assert "int4 (weights)" in kernel[0]
        (got,) = program.run({"x": x}).values()
    right, most = expected(x, matrix / 2, 0)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("function", ["Relu", "Sigmoid"])
def test_epilogues(function, level):
    """A residual and an activation are part of the matmul: x · sigmoid(x) is SiLU."""
    model, matrix, added = qdq(level=level)
    nodes = model.graph.node
    nodes[-1].output[0] = "p"
    nodes.append(helper.make_node("Add", ["p", "r"], ["a"]))
    nodes.append(helper.make_node(function, ["a"], ["b" if function == "Sigmoid" else "y"]))
    if function == "Sigmoid":
        nodes.append(helper.make_node("Mul", ["a", "b"], ["y"]))
    model.graph.input.append(
        helper.make_tensor_value_info("r", TensorProto.FLOAT, ["rows", matrix.shape[1]])
    )
    with compile_model(model) as program:
        for rows in (1, 9):
            x, r = rows_of(rows, 96), rows_of(rows, matrix.shape[1])
            (got,) = program.run({"x": x, "r": r}).values()
            right, most = expected(x, matrix, added)
            right = right + r
            share = 0.02 if level else 1e-5
            right = np.maximum(right, 0) if function == "Relu" else right / (1 + np.exp(-right))
            np.testing.assert_allclose(got, right, rtol=share, atol=share * most)
        assert program.stats()["steps"] == 1


@pytest.mark.parametrize("name", ["int4 axis 0 block 32 zeros True MatMul", "MatMulNBits g_idx"])
@pytest.mark.parametrize("level", [0, 4])
def test_the_cache_does_not_change_a_bit(tmp_path, name, level):
    build, given = FORMS[name]
    model, matrix, _ = build(**given, level=level)
    bundle = saved(tmp_path / "b.narrow", one=model)
    x = {rows: rows_of(rows, matrix.shape[0]) for rows in (1, 9)}
    with compile_model(model) as program:
        right = {rows: program.run({"x": given})["y"] for rows, given in x.items()}
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for rows, given in x.items():
            np.testing.assert_array_equal(program.run({"x": given}, "one")["y"], right[rows])
        program.close()
        del program
        gc.collect()


def test_blocks_of_a_shape_without_a_kernel_say_so():
    """Blocks of 12 fit no words of 8 weights: they are upcast, and `explain` has the reason."""
    model, matrix, _ = qdq("uint4", 0, 12)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert "float32: its uint4 weights are upcast when they are packed" in kernel
        x = rows_of(3, 96)
        right, most = expected(x, matrix, 0)
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5 * most)


def test_sizes_of_what_is_packed():
    """Half a byte for a weight of 4 bits, 4 bytes for a block's scale, 1 for its zero point."""
    from narrowpass_xnn_cpu.native.library import extension

    lib, ffi = extension().lib, extension().ffi
    form = {"outputs": 64, "inputs": 128, "block": 32, "bits": 4, "scales": 0, "zeros": 0}
    for zeros, number in (("COMMON", 0), ("U8", 1), ("F32", 4)):
        form["zeros"] = getattr(lib, f"NP_NBITS_ZEROS_{zeros}")
        size = lib.np_nbits_packed_size(ffi.new("struct np_nbits_matrix *", form))
        assert size == 64 * (128 // 2 + 4 * (4 + number) + 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_one_scale_for_all(kind, axis):
    """[K, N] as it is stored, and [N, K] with a Transpose, are packed in blocks that share it."""
    numbers = np.random.default_rng(5).integers(*((-8, 8) if kind == "int4" else (0, 16)), (96, 40))
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"])]
    if axis:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if axis else "w"], ["y"]))
    parts = [initializer("q", numbers.T if axis else numbers, kind)]
    parts.append(initializer("s", np.array(0.0125, np.float32)))
    matrix = numbers * float(np.float32(0.0125))
    with compile_model(wrap(nodes, 96, 40, parts)) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert "int4 (weights)" in kernel, kernel
        for rows in (1, 9):
            x = rows_of(rows, 96)
            right, most = expected(x, matrix, 0)
            got = program.run({"x": x})["y"]
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)
