"""Matmuls with int8 matrices, packed as stored, with their scales."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_matmul_kit import (
    PER_CHANNEL,
    RNG,
    ROWS,
    WEIGHTS,
    ZEROS,
    at,
    kernel_of,
    quantized_matmul,
    reference,
    rows,
    with_one,
)
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check, compile_model, fully_connected, skip_where_nan_is_lost

from narrowpass_xnn_cpu.native.problems import quantization
from narrowpass_xnn_cpu.native.problems.quantization import MAX_TERMS

WAYS = ["MatMul", "Gemm", "transB", "transpose", "integers", "reshape"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("after", ["", "Relu", "Clip"])
def test_weights_of_int8(way, per_channel, after):
    model = quantized_matmul(per_channel=per_channel, way=way, bias=True, after=after)
    program = check(model, {"x": rows(5)})
    assert kernel_of(program) == WEIGHTS
    plans = [plan.kernel for plan in program.explain()]
    assert set(plans) == {WEIGHTS, "packed with the weights"}
    for count in (1, 8, 3, 0):
        check(model, {"x": rows(count)}, program=program)


SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 61, 64, 97])


@settings(max_examples=60, deadline=None)
@given(
    inputs=SIZES,
    outputs=SIZES,
    count=st.sampled_from([1, 2, 3, 7, 11, 16]),
    way=st.sampled_from(WAYS),
    per_channel=st.booleans(),
    bias=st.booleans(),
    after=st.sampled_from(["", "Relu", "Clip"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_shapes(inputs, outputs, count, way, per_channel, bias, after, threads, seed):
    model = quantized_matmul(
        inputs, outputs, per_channel=per_channel, way=way, bias=bias, after=after, seed=seed
    )
    x = np.random.default_rng(seed).standard_normal((count, inputs)).astype(np.float32)
    program = compile_model(model, threads=threads)
    assert kernel_of(program) == WEIGHTS
    check(model, {"x": x}, program=program, least=1.0)


def test_more_axes_of_rows_and_an_axis_from_the_end():
    model = quantized_matmul(16, 6, bias=True)
    del model.graph.value_info[:]
    kind = TensorProto.FLOAT
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, ["A", "B", 16]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, None))
    model.graph.node[0].attribute[0].i = -1
    x = RNG.standard_normal((2, 3, 16)).astype(np.float32)
    assert kernel_of(check(model, {"x": x})) == WEIGHTS


@pytest.mark.parametrize("alpha", [0.25, -2.0])
def test_a_gemm_that_is_scaled(alpha):
    """A factor goes into the scales, and they must stay positive."""
    program = check(quantized_matmul(way="transB", alpha=alpha, bias=True), {"x": rows(4)})
    assert (kernel_of(program) == WEIGHTS) == (alpha > 0)


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"z": at(ZEROS, 18, 1)}, "a zero point is not 0"),
        ({"s": at(PER_CHANNEL, 7, 1e-39)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, -0.5)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, 0)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, np.inf)}, "a scale is not finite"),
        ({"s": at(PER_CHANNEL, 7, np.nan)}, "a scale is not finite"),
        (
            {"s": at(PER_CHANNEL, 7, 2e-38), "b": np.full(19, 100, np.float32)},
            "a bias is too large for its scale",
        ),
        ({"w": RNG.integers(-9, 9, (19, 19)).astype(np.int8)}, "its scales are of its input"),
    ],
)
@pytest.mark.parametrize("cached", [False, "memory"])
def test_operands_that_do_not_fit_int8_have_float_rows(constants, reason, cached):
    if not np.isfinite(constants.get("s", 1)).all():
        skip_where_nan_is_lost()
    inputs = len(constants.get("w", with_one(0)))
    found = {"s": PER_CHANNEL, **constants}
    model = quantized_matmul(inputs, bias="b" in constants, **found)
    if "input" in reason:
        model.graph.node[0].attribute[0].i = 0
    program = compile_model(model, cache=cached)
    kernel = kernel_of(program)
    # Blocks share scales along the input channels alone, and these are finite.
    blocks = "input" not in reason and np.isfinite(constants.get("s", 1)).all()
    kind = "fully connected in int8 (weights)" if blocks else f"{fully_connected()} in float32"
    assert kernel.startswith(f"{kind}: {reason}")
    feeds = {"x": rows(3, inputs)}
    with np.errstate(all="ignore"):
        check(model, feeds, program=program)


def test_zero_points_of_0_are_none():
    program = check(quantized_matmul(s=PER_CHANNEL, z=ZEROS), {"x": rows(2)})
    assert kernel_of(program) == WEIGHTS


def test_unsigned_weights_have_float_rows():
    array = RNG.integers(0, 256, (37, 19)).astype(np.uint8)
    program = check(quantized_matmul(w=array), {"x": rows(2)})
    assert kernel_of(program) == "fully connected in int8 (weights): a zero point is not 0"


def test_infinities_and_nan_in_rows():
    """They spread in their own row only, as the formula says."""
    skip_where_nan_is_lost()
    model = quantized_matmul(w=np.abs(with_one(5)) | np.int8(1))
    x = rows(5)
    x[1, 4], x[2, 0], x[3, 36] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        assert kernel_of(check(model, {"x": x})) == WEIGHTS


# Rows that are quantized too


def check_rows(model: onnx.ModelProto, x: np.ndarray, program=None, **options) -> None:
    """Compare with the evaluator, as far as the steps of rows allow.

    A row is rounded to steps of (max - min) / 255, where 0 is one of the numbers: each element is
    off by half a step at most, and a result by that times the sum of its weights' magnitudes.
    Accumulators and scales are rounded too, as for floats. Clamping increases no difference.
    """
    program = program or compile_model(model, **options)
    assert kernel_of(program) == ROWS
    got, right = program.run({"x": x})["y"], reference(model, x)
    assert (got.dtype, got.shape) == (right.dtype, right.shape)
    magnitudes = magnitudes_of(model)
    steps = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)).astype(np.float64) / 255
    limit = np.outer(steps / 2, magnitudes)
    largest = np.abs(x).max(1, initial=0)[:, None] * magnitudes
    assert (np.abs(got.astype(np.float64) - right) <= 1.001 * limit + 1e-5 * (largest + 1)).all()


def magnitudes_of(model: onnx.ModelProto) -> np.ndarray:
    """Return the sum of the magnitudes of the weights of each output: of rows of ones."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        if node.name == "matmul":
            del node.input[2:]
            node.output[0] = "y"
            last = list(plain.graph.node).index(node)
    del plain.graph.node[last + 1 :]
    for tensor in plain.graph.initializer:
        if tensor.name == "w":
            array = np.abs(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(array, "w"))
    inputs = plain.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    return np.abs(reference(plain, np.ones((1, inputs), np.float32))[0].astype(np.float64))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("after", ["", "Relu", "Clip"])
def test_rows_of_int8(way, per_channel, after):
    model = quantized_matmul(per_channel=per_channel, way=way, bias=True, after=after, dynamic=True)
    program = compile_model(model)
    for count in (5, 1, 8, 3, 31):
        check_rows(model, rows(count), program)
    assert program.run({"x": rows(0)})["y"].shape == (0, 19)


@settings(max_examples=60, deadline=None)
@given(
    inputs=SIZES,
    outputs=SIZES,
    count=st.sampled_from([1, 2, 3, 7, 11, 16]),
    way=st.sampled_from(WAYS),
    bias=st.booleans(),
    after=st.sampled_from(["", "Relu", "Clip"]),
    shift=st.sampled_from([-30.0, -1.0, 0.0, 1.0, 30.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_shapes_of_rows(inputs, outputs, count, way, bias, after, shift, threads, seed):
    """Also of one sign, and with rows of very different ranges."""
    model = quantized_matmul(
        inputs, outputs, way=way, bias=bias, after=after, seed=seed, dynamic=True
    )
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((count, inputs)) + shift).astype(np.float32)
    x *= np.float32(10) ** rng.integers(-6, 6, (count, 1)).astype(np.float32)
    check_rows(model, x, threads=threads)


def test_many_rows_on_threads():
    model = quantized_matmul(640, 96, bias=True, dynamic=True)
    for threads in (1, 2, 3):
        check_rows(model, rows(300, 640), threads=threads)


def test_rows_that_are_exact():
    """Integers from -128 to 127 are steps of 1, and their dot products are exact."""
    matrix = RNG.integers(-127, 128, (300, 19)).astype(np.int8)
    model = quantized_matmul(300, w=matrix, s=np.float32(0.5), dynamic=True)
    x = RNG.integers(-128, 128, (7, 300)).astype(np.float32)
    x[:, 0], x[:, 1] = -128, 127
    program = compile_model(model)
    assert kernel_of(program) == ROWS
    exact = x.astype(np.int64) @ matrix.astype(np.int64) * 0.5
    np.testing.assert_array_equal(program.run({"x": x})["y"], exact.astype(np.float32))


def test_rows_of_zeros_and_tiny_numbers():
    model = quantized_matmul(bias=True, dynamic=True)
    x = rows(4)
    x[0], x[1], x[2] = 0, 1e-38, x[2] * np.float32(1e-37)
    x[3] = np.abs(x[3]) * np.float32(1e32)
    check_rows(model, x)


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_accumulators_that_overflow_before_scaling_are_not_finite(dynamic):
    """Infinite with fused multiply-add; NaN where two infinities meet."""
    model = quantized_matmul(dynamic=dynamic)
    x = np.abs(rows(2))
    x[0] *= np.float32(1e37)
    got = compile_model(model).run({"x": x})["y"]
    assert not np.isfinite(got[0]).all()
    assert np.isfinite(got[1]).all()


def test_rows_with_infinities_and_nan_are_nan():
    """Their range says nothing: the whole row is NaN, whatever it is clamped to; others are not."""
    for after in ("", "Relu", "Clip"):
        model = quantized_matmul(bias=True, after=after, dynamic=True)
        program = compile_model(model)
        for odd in (np.nan, -np.nan, np.inf, -np.inf, 2e38, -3e38):
            for place in (0, 17, 36):
                x = rows(6)
                x[2, place] = x[5, place] = odd
                got = program.run({"x": x})["y"]
                assert np.isnan(got[[2, 5]]).all()
                fine = x[[0, 1, 3, 4]]
                np.testing.assert_array_equal(got[[0, 1, 3, 4]], program.run({"x": fine})["y"])
        assert np.isnan(program.run({"x": np.full((3, 37), np.nan, np.float32)})["y"]).all()


def test_accumulators_at_the_limit_of_32_bits():
    """With one channel more rows stay float."""
    for inputs in (MAX_TERMS, MAX_TERMS + 1):
        matrix = np.full((inputs, 2), 127, np.int8)
        matrix[:, 1] = -127
        model = quantized_matmul(inputs, 2, w=matrix, s=np.float32(1e-3), dynamic=True)
        x = np.stack([np.ones(inputs, np.float32), -np.ones(inputs, np.float32)])
        program = compile_model(model)
        if inputs == MAX_TERMS:
            assert kernel_of(program) == ROWS
        else:
            assert (
                kernel_of(program)
                == f"{WEIGHTS}: accumulators of 65794 channels may not fit 32 bits"
            )
        exact = 0.127 * inputs
        right = [[exact, -exact], [-exact, exact]]
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-4)


def test_matmuls_that_cannot_quantize_rows_have_float_rows(monkeypatch):
    monkeypatch.setattr(quantization, "LEAST_WEIGHT", -127)
    unfit = compile_model(quantized_matmul(w=with_one(-128), dynamic=True))
    found = kernel_of(unfit)
    assert found.startswith("fully connected in int8 (weights")
    assert found.endswith(": a weight is -128")
    floats = quantized_matmul(w=np.ones((37, 19), np.float32), dynamic=True)
    del floats.graph.node[0]
    floats.graph.node[0].input[1] = "w"
    kernel = kernel_of(check(floats, {"x": rows(2)}))
    assert kernel == f"{fully_connected()} in float32: its matrix is not int8"
