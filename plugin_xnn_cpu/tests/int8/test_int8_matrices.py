"""Int8 matmuls by the plugin's own kernels, equal to int64 accumulators requantized."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_kernels_kit import REQUANTIZED, bytes_of, code, requantize, run, run_rows, scales_of

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.own import int8_convolution, int8_matmul
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import (
    LEAST_WEIGHT,
    MAX_TERMS,
    Quantization,
    Requantized,
    UnfitError,
)
from narrowpass_xnn_cpu.native.runtime.pool import shared

__all__ = ["code"]  # a fixture that all tests of this module have


ROWS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 27, 48, 50])
INPUTS = st.sampled_from([1, 2, 3, 15, 16, 17, 64, 129, 1000, 3001])
OUTPUTS = st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 24, 25, 32, 33, 40, 48, 50, 64, 70, 130])


def matrix_of(rng, outputs, inputs, extreme, transposed, single=False):
    """Return a matrix [O, C], its scales, and how it is stored."""
    matrix = bytes_of(rng, (outputs, inputs), extreme, LEAST_WEIGHT)
    scales = scales_of(rng, 1 if single else outputs, inputs)
    stored = np.ascontiguousarray(matrix.T) if transposed else matrix
    quantized = Quantized(Weight.of(stored), Weight.of(scales), None, 1 if transposed else 0)
    return matrix, np.broadcast_to(scales, (outputs,)), quantized


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=ROWS,
    inputs=INPUTS,
    outputs=OUTPUTS,
    requantized=REQUANTIZED,
    transposed=st.booleans(),
    single=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_matmul(seed, rows, inputs, outputs, requantized, transposed, single, extreme, threads):
    rng = np.random.default_rng(seed)
    x = bytes_of(rng, (rows, inputs), extreme)
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, extreme, transposed, single)
    bias = rng.integers(-50000, 50000, outputs).astype(np.int32)
    operator = int8_convolution.MATMUL.create(
        Matmul(quantized, Weight.of(bias), requantized, transposed)
    )
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.int8, threads)
    accumulators = (x.astype(np.int64) - requantized.input.zero_point) @ matrix.T.astype(
        np.int64
    ) + bias
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))


def to_float(accumulators, row_scales, scales, bias, limits):
    """Return float32(accumulator) · row scale · scale + bias, the last two rounded once."""
    x = accumulators.astype(np.int32).astype(np.float32) * row_scales[:, None]
    # 64 bits of mantissa multiply two float32 numbers exactly.
    wide = x.astype(np.longdouble) * scales.astype(np.longdouble) + bias
    return np.clip(wide.astype(np.float32), *np.float32(limits))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=ROWS,
    inputs=INPUTS,
    outputs=OUTPUTS,
    zero=st.integers(-128, 127),
    limits=st.sampled_from([(-np.inf, np.inf), (0.0, 6.0)]),
    transposed=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_matmul_with_float_output(
    seed, rows, inputs, outputs, zero, limits, transposed, extreme, threads
):
    rng = np.random.default_rng(seed)
    x = bytes_of(rng, (rows, inputs), extreme)
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, extreme, transposed)
    bias = rng.standard_normal(outputs).astype(np.float32)
    given = Quantization(float(np.float32(0.03)), zero)
    operator = int8_matmul.MATMUL.create(
        Matmul(quantized, Weight.of(bias), Epilogue(limits=limits), transposed, operand=given)
    )
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.float32, threads)
    accumulators = (x.astype(np.int64) - zero) @ matrix.T.astype(np.int64)
    row_scales = np.full(rows, given.scale, np.float32)
    np.testing.assert_array_equal(got, to_float(accumulators, row_scales, scales, bias, limits))


def quantize_rows(x):
    """Quantize rows; return integers minus their zero point, and scales."""
    low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    with np.errstate(divide="ignore"):
        inverse = np.where(low == high, np.float32(1), np.float32(255) / (high - low))
    inverse = np.minimum(inverse, np.float32(2.0**127))
    least, most = (bound.astype(np.float64) * inverse for bound in (low, high))
    zero = np.where(least + most > 1, -128 - least, 127 - most)
    zero = np.rint(np.clip(zero, -128, 127)).astype(np.float32)[:, None]
    integers = np.clip(np.rint(x * inverse[:, None]), -128 - zero, 127 - zero)
    return integers.astype(np.int64), np.float32(1) / inverse


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=ROWS,
    inputs=INPUTS,
    outputs=OUTPUTS,
    shift=st.sampled_from([0.0, 5.0, -5.0]),
    limits=st.sampled_from([(-np.inf, np.inf), (-1.0, 6.0)]),
    threads=st.sampled_from([1, 2]),
)
def test_matmul_with_per_token_quantization(seed, rows, inputs, outputs, shift, limits, threads):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)) * 10.0 ** rng.integers(-30, 30, (rows, 1))
    x = (x + shift).astype(np.float32)
    x[rng.random((rows, inputs)) < 0.1] = 0
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, False, False)
    bias = rng.standard_normal(outputs).astype(np.float32)
    operator = int8_matmul.PER_TOKEN.create(
        Matmul(quantized, Weight.of(bias), Epilogue(limits=limits), operand=PerToken())
    )
    operator.reshape(rows, shared(threads))
    got = run_rows(operator, x, (rows, outputs), threads)
    integers, row_scales = quantize_rows(x)
    expected = to_float(integers @ matrix.T.astype(np.int64), row_scales, scales, bias, limits)
    np.testing.assert_array_equal(got, expected)
    # What is quantized differs from the row by half a step, and from its zero point by another.
    off = np.abs(x.astype(np.float64) - integers * row_scales[:, None].astype(np.float64))
    assert (off.max(1) <= 1.01 * row_scales).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 2.0**127, -(2.0**127)])
@pytest.mark.parametrize("at", [0, 17, 50, 63, 64, 96])
def test_rows_that_cannot_be_quantized(odd, at):
    """Wherever in a row the number is: vectors are compared by fours, then one by one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 97)).astype(np.float32)
    x[5, at] = odd
    _, _, quantized = matrix_of(rng, 20, 97, False, False)
    operator = int8_matmul.PER_TOKEN.create(
        Matmul(quantized, None, Epilogue(limits=(-1.0, 1.0)), operand=PerToken())
    )
    operator.reshape(8, shared(1))
    got = run_rows(operator, x, (8, 20), 1)
    assert np.isnan(got[5]).all()
    assert np.isfinite(np.delete(got, 5, 0)).all()


def test_extreme_rows():
    """Subnormal numbers, large ones, and zeros."""
    x = np.zeros((4, 16), np.float32)
    x[0] = np.float32(1e-45)
    x[1, :2] = np.float32(1e36), np.float32(-1e36)
    x[2, 3] = np.float32(-1e-40)
    matrix = np.eye(16, dtype=np.int8) * np.int8(127)
    quantized = Quantized(Weight.of(matrix), Weight.of(np.full(1, 1 / 127, "f4")), None, 0)
    operator = int8_matmul.PER_TOKEN.create(Matmul(quantized, None, operand=PerToken()))
    operator.reshape(4, shared(1))
    got = run_rows(operator, x, (4, 16), 1)
    steps = np.maximum(np.float64(np.ptp(x.astype(np.float64), axis=1)) / 255, 2.0**-127)
    assert (np.abs(got.astype(np.float64) - x).max(1) <= 1.01 * steps).all()
    assert not got[3].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_dot_products(sign):
    """As many terms of the largest magnitude as a 32-bit accumulator holds."""
    inputs = MAX_TERMS
    x = np.full((7, inputs), 127, np.int8)
    matrix = np.full((9, inputs), 127 if sign > 0 else LEAST_WEIGHT, np.int8)
    scales = np.full(9, 2.0**-24, np.float32)
    requantized = Requantized(Quantization(1.0, -128), Quantization(1.0, 3))
    quantized = Quantized(Weight.of(matrix), Weight.of(scales), None, 0)
    operator = int8_convolution.MATMUL.create(Matmul(quantized, None, requantized))
    operator.reshape(7, shared(2))
    got = run(operator, x, (7, 9), np.int8, 2)
    accumulators = (x.astype(np.int64) + 128) @ matrix.T.astype(np.int64)
    assert np.abs(accumulators).min() >= inputs * 255 * 127
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))
    longer = Quantized(
        Weight.of(np.zeros((1, inputs + 1), np.int8)), Weight.of(scales[:1]), None, 0
    )
    with pytest.raises(UnfitError, match="32 bits"):
        int8_convolution.MATMUL.create(Matmul(longer, None, requantized))


@pytest.mark.parametrize("inputs", [32764, 32768, 32769, MAX_TERMS])
@pytest.mark.parametrize("zero", [-128, 127])
def test_the_longest_dot_products_with_float_output(inputs, zero):
    """Zero-point corrections (totals of columns of weights) above 22 bits, beside smaller ones."""
    rng = np.random.default_rng(inputs)
    x = bytes_of(rng, (7, inputs), True)
    x[0], x[1] = -128, 127
    matrix = bytes_of(rng, (40, inputs), True, LEAST_WEIGHT)
    matrix[:3], matrix[35:] = 127, LEAST_WEIGHT
    scales = scales_of(rng, 40, inputs)
    quantized = Quantized(Weight.of(matrix), Weight.of(scales), None, 0)
    given = Quantization(0.5, zero)
    operator = int8_matmul.MATMUL.create(Matmul(quantized, None, operand=given))
    operator.reshape(7, shared(1))
    got = run(operator, x, (7, 40), np.float32, 1)
    accumulators = (x.astype(np.int64) - zero) @ matrix.T.astype(np.int64)
    assert np.abs(accumulators).max() > 255 * 127 * (inputs - 1)
    row_scales = np.full(7, 0.5, np.float32)
    np.testing.assert_array_equal(
        got, to_float(accumulators, row_scales, scales, np.float32(0), (-np.inf, np.inf))
    )
