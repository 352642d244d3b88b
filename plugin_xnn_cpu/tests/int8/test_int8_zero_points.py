"""Weights with zero points, by the plugin's own kernels, against int64 accumulators.

Accumulators are exact. Requantized bytes are equal where the same float32 value is rounded;
float32 results are compared with the same two roundings, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_kernels_kit import code, convolve, requantize, run

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.own import int8_convolution, int8_depthwise, int8_matmul
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.problems.quantization import (
    LEAST_WEIGHT,
    MAX_TERMS_WITH_ZERO_POINTS,
    Quantization,
    Requantized,
    UnfitError,
)
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.table import create_convolution, create_matmul

Array = np.ndarray[Any, Any]
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


__all__ = ["code"]  # a fixture that all tests of this module have


def drawn(seed: int, shape: tuple[int, ...], outputs: int, axis: int) -> tuple[Quantized, Array]:
    """Draw bytes with zero points; return them, and the bytes minus the zero points."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(LEAST_WEIGHT, 128, shape).astype(np.int8)
    zeros = rng.integers(-128, 128, outputs).astype(np.int8)
    scales = (2.0 ** rng.integers(-14, -9, outputs)).astype(np.float32)
    places = [1] * len(shape)
    places[axis] = outputs
    matrix = Quantized(Weight.of(integers), Weight.of(scales), Weight.of(zeros), axis)
    return matrix, integers.astype(np.int64) - zeros.reshape(places)


@QUICK
@given(
    seed=st.integers(0, 10**6),
    rows=st.sampled_from([1, 2, 5, 6, 14, 29]),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 150),
    threads=st.sampled_from([1, 2]),
)
def test_matmul_to_bytes_and_to_floats(seed, rows, inputs, outputs, threads):
    matrix, exact = drawn(seed, (outputs, inputs), outputs, 0)
    x = np.random.default_rng(seed + 1).integers(-128, 128, (rows, inputs)).astype(np.int8)
    change = Requantized(Quantization(1.0, -7), Quantization(1.0, 3))
    accumulators = (x.astype(np.int64) + 7) @ exact.T
    scales = matrix.scale.array()
    operator = int8_convolution.MATMUL.create(Matmul(matrix, None, change))
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.int8, threads)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, change))
    floats = int8_matmul.MATMUL.create(Matmul(matrix, None, operand=Quantization(0.5, -7)))
    floats.reshape(rows, shared(threads))
    got = run(floats, x, (rows, outputs), np.float32, threads)
    np.testing.assert_array_equal(got, accumulators.astype(np.float32) * np.float32(0.5) * scales)


@QUICK
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(3, 11), st.integers(3, 17)),
    kernel_shape=st.sampled_from([(1, 1), (3, 3), (2, 3), (1, 5)]),
    strides=st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    pads=st.sampled_from([(0, 0, 0, 0), (1, 2, 2, 2)]),
    groups=st.sampled_from([1, 1, 3]),
    inputs=st.integers(1, 20),
    outputs=st.integers(1, 40),
    threads=st.sampled_from([1, 2]),
)
def test_convolutions(seed, size, kernel_shape, strides, pads, groups, inputs, outputs, threads):
    size = max(size[0], kernel_shape[0]), max(size[1], kernel_shape[1])
    attributes = ConvAttributes(pads, strides, (1, 1), groups)
    outputs *= groups
    matrix, exact = drawn(seed, (outputs, *kernel_shape, inputs), outputs, 0)
    x = np.random.default_rng(seed + 1).integers(-128, 128, (2, *size, inputs * groups))
    x = x.astype(np.int8)
    change = Requantized(Quantization(1.0, 9), Quantization(1.0, -3))
    operator = int8_convolution.CONVOLUTION.create(Convolution(matrix, None, attributes, change))
    operator.reshape(x.shape, shared(threads))
    accumulators = convolve(x, exact, None, attributes, 9)
    got = run(operator, x, accumulators.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(accumulators, matrix.scale.array(), change))


@QUICK
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(5, 11), st.integers(5, 17)),
    kernel_shape=st.sampled_from([(3, 3), (5, 5), (2, 3), (1, 1)]),
    strides=st.sampled_from([(1, 1), (2, 2)]),
    channels=st.integers(1, 70),
)
def test_depthwise_convolutions(seed, size, kernel_shape, strides, channels):
    attributes = ConvAttributes((1, 1, 1, 1), strides, (1, 1), channels)
    matrix, exact = drawn(seed, (*kernel_shape, channels), channels, 2)
    x = np.random.default_rng(seed + 1).integers(-128, 128, (1, *size, channels)).astype(np.int8)
    change = Requantized(Quantization(1.0, 9), Quantization(1.0, -3))
    operator = int8_depthwise.create(Convolution(matrix, None, attributes, change, depthwise=True))
    operator.reshape(x.shape, shared(1))
    accumulators = convolve(x, exact.transpose(2, 0, 1)[..., None], None, attributes, 9)
    got = run(operator, x, accumulators.shape, np.int8, 1)
    np.testing.assert_array_equal(got, requantize(accumulators, matrix.scale.array(), change))


def test_the_longest_dot_products():
    """As many terms of the largest magnitude as a 32-bit accumulator holds, and one more."""
    matrix = Quantized(
        Weight.of(np.full((3, MAX_TERMS_WITH_ZERO_POINTS), 127, np.int8)),
        Weight.of(np.full(1, 2.0**-24, np.float32)),
        Weight.of(np.int8([-128])),
        0,
    )
    x = np.full((2, MAX_TERMS_WITH_ZERO_POINTS), 127, np.int8)
    change = Requantized(Quantization(1.0, -128), Quantization(1.0, 0))
    operator = int8_convolution.MATMUL.create(Matmul(matrix, None, change))
    operator.reshape(2, shared(1))
    accumulators = np.full((2, 3), 255 * 255 * MAX_TERMS_WITH_ZERO_POINTS)
    assert 2**31 - 255 * 255 <= accumulators.max() < 2**31
    got = run(operator, x, (2, 3), np.int8, 1)
    scales = np.full(3, 2.0**-24, np.float32)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, change))
    longer = Quantized(
        Weight.of(np.zeros((3, MAX_TERMS_WITH_ZERO_POINTS + 1), np.int8)),
        matrix.scale,
        matrix.zero,
        0,
    )
    with pytest.raises(UnfitError, match="with zero points may not fit 32 bits"):
        int8_convolution.MATMUL.create(Matmul(longer, None, change))


def test_zero_points_that_are_0_cost_nothing():
    """The kernel is that of weights without any."""
    matrix, _ = drawn(0, (4, 6), 4, 0)
    plain = Quantized(matrix.integers, matrix.scale, Weight.of(np.zeros(4, np.int8)), 0)
    change = Requantized(Quantization(1.0, 0), Quantization(1.0, 0))
    operator = int8_convolution.MATMUL.create(Matmul(plain, None, change))
    assert not operator.reshape(3, shared(1)).weight_zeros
    operator = int8_convolution.MATMUL.create(Matmul(matrix, None, change))
    assert operator.reshape(3, shared(1)).weight_zeros


def test_kernels_of_ours_are_chosen_for_zero_points():
    """XNNPACK's take none: ours multiply on any processor."""
    matrix, _ = drawn(0, (16, 1, 1, 8), 16, 0)
    change = Requantized(Quantization(1.0, 0), Quantization(1.0, 0))
    assert (
        create_convolution(Convolution(matrix, None, ConvAttributes(), change)).kernel
        is int8_convolution.CONVOLUTION
    )
    matrix, _ = drawn(0, (16, 8), 16, 0)
    assert (
        create_matmul(Matmul(matrix, None, change, operand=change.input)).kernel
        is int8_convolution.MATMUL
    )
