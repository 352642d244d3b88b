"""Convolutions and products of int8 by kernels of ours: bit for bit what int64 sums give."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import compiled, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_graph import QdqGraph
from qdq_kit import off_by

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import int8_choice
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import ConvolutionS8, Quantization, Requantized
from narrowpass_xnn_cpu.native.operators.quantized import MOST_CHANNELS, UnfitError
from narrowpass_xnn_cpu.native.operators.tiled_convolution import (
    TiledConvolutionS8,
    TiledDepthwiseS8,
)
from narrowpass_xnn_cpu.native.operators.tiled_product import (
    TiledFullyConnectedInt8,
    TiledFullyConnectedS8,
    TiledFullyConnectedS8F32,
)
from narrowpass_xnn_cpu.native.operators.tiled_winograd import WinogradConvolutionS8
from narrowpass_xnn_cpu.native.pool import shared
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned
from narrowpass_xnn_cpu.weights.session import WeightsCache
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

TARGETS = ("plain", "avx2")
GUARD = 64


@pytest.fixture(autouse=True, params=TARGETS)
def code(request, monkeypatch):
    """Run a test with each of the codes that this processor has."""
    monkeypatch.setattr(kernels, "TARGET", request.param)
    return request.param


def run(operator, x, shape, dtype, threads):
    """Run an operator on x; bytes around the result must stay as they are."""
    tape = Tape([Entry(operator.call, (0,), 1, operator, operator.params, True, "int8")], 2)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD, 85, np.uint8)
    scratch = aligned(operator.workspace)
    scratch[...] = 170  # nothing may depend on what was there
    tape.bind_workspace(scratch, 0)
    tape.bind(0, np.ascontiguousarray(x))
    tape.bind(1, memory, GUARD)
    tape.run(shared(threads))
    assert (memory[:GUARD] == 85).all()
    assert (memory[-GUARD:] == 85).all()
    return memory[GUARD:-GUARD].view(dtype).reshape(shape)


def requantize(sums, scales, requantized):
    """Give rint(float32(sum) · scale) + zero, clamped."""
    assert np.abs(sums).max(initial=0) < 2**31
    factors = np.float32(requantized.given.scale) * scales / np.float32(requantized.made.scale)
    x = np.rint(sums.astype(np.int32).astype(np.float32) * factors)
    return np.clip(x.astype(np.float64) + requantized.made.zero_point, *requantized.limits).astype(
        np.int8
    )


def windows(x, window, movement, zero):
    """Give [N, H, W, KH, KW, C] of int64, with the zero point taken away."""
    top, left, bottom, right = movement.pads
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (top, bottom), (left, right), (0, 0)))
    down, along = movement.dilations
    reach = (window[0] - 1) * down + 1, (window[1] - 1) * along + 1
    views = np.lib.stride_tricks.sliding_window_view(wide, reach, (1, 2))
    views = views[:, :: movement.strides[0], :: movement.strides[1], :, ::down, ::along]
    return views.transpose(0, 1, 2, 4, 5, 3)


def convolve(x, kernel, bias, movement, zero):
    """Give exact sums of a convolution with [O, KH, KW, C / groups]."""
    outputs, height, width, per_group = kernel.shape
    seen = windows(x, (height, width), movement, zero)
    n, h, w = seen.shape[:3]
    groups = movement.groups
    seen = seen.reshape(n, h, w, height, width, groups, per_group)
    weights = kernel.astype(np.int64).reshape(groups, outputs // groups, height, width, per_group)
    sums = np.einsum("nhwabgc,goabc->nhwgo", seen, weights, optimize=True)
    return sums.reshape(n, h, w, outputs) + (0 if bias is None else bias.astype(np.int64))


def bytes_of(rng, shape, extreme, low=-128):
    if extreme:
        return rng.choice(np.array([low, 127], np.int8), shape)
    return rng.integers(low, 128, shape).astype(np.int8)


def scales_of(rng, count, depth):
    """Give scales with which most results are inside the range, some beyond."""
    return (rng.uniform(0.2, 3, count) / np.sqrt(depth) / 100).astype(np.float32)


REQUANTIZED = st.builds(
    lambda z, o, limits: Requantized(
        Quantization(0.5, z), Quantization(0.25, o), (min(limits), max(limits))
    ),
    st.integers(-128, 127),
    st.integers(-128, 127),
    st.sampled_from([(-128, 127), (-128, 127), (-100, 50), (0, 127), (-128, -127)]),
)
STEPS = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
CHANNELS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 48])


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=STEPS,
    dilations=STEPS,
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    inputs=CHANNELS,
    outputs=CHANNELS,
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    requantized=REQUANTIZED,
    has_bias=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_convolutions(
    seed, batch, size, window, strides, dilations, pads, inputs, outputs, groups, requantized,
    has_bias, extreme, threads,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    movement = Movement(pads, strides, dilations, groups)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    size = [
        max(s, r - pads[i] - pads[i + 2], 1)
        for i, (s, r) in enumerate(zip(size, reach, strict=True))
    ]
    x = bytes_of(rng, (batch, *size, inputs * groups), extreme)
    kernel = bytes_of(rng, (outputs * groups, *window, inputs), extreme, -127)
    bias = rng.integers(-50000, 50000, outputs * groups).astype(np.int32) if has_bias else None
    scales = scales_of(rng, outputs * groups, inputs * window[0] * window[1])
    operator = TiledConvolutionS8(
        Quantized(Weight.of(kernel), Weight.of(scales), None, 0),
        None if bias is None else Weight.of(bias),
        movement,
        requantized,
    )
    sums = convolve(x, kernel, bias, movement, requantized.given.zero_point)
    assert operator.reshape(x.shape, shared(threads)) == sums.shape[1:3]
    got = run(operator, x, sums.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(1, 14), st.integers(1, 19)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    inputs=st.sampled_from([16, 32, 48, 64, 320]),
    outputs=st.sampled_from([16, 32, 80]),
    requantized=REQUANTIZED,
    has_bias=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_winograd(
    seed, batch, size, pads, inputs, outputs, requantized, has_bias, extreme, threads
):
    rng = np.random.default_rng(seed)
    movement = Movement(pads)
    size = [max(s, 3 - a - b, 1) for s, a, b in zip(size, pads, pads[2:], strict=False)]
    x = bytes_of(rng, (batch, *size, inputs), extreme)
    kernel = bytes_of(rng, (outputs, 3, 3, inputs), extreme, -127)
    bias = rng.integers(-50000, 50000, outputs).astype(np.int32) if has_bias else None
    scales = scales_of(rng, outputs, 9 * inputs)
    operator = WinogradConvolutionS8(
        Quantized(Weight.of(kernel), Weight.of(scales), None, 0),
        None if bias is None else Weight.of(bias),
        movement,
        requantized,
    )
    sums = convolve(x, kernel, bias, movement, requantized.given.zero_point)
    assert operator.reshape(x.shape, shared(threads)) == sums.shape[1:3]
    got = run(operator, x, sums.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))


@pytest.mark.parametrize("sign", [1, -1])
def test_winograd_of_the_largest_sums(sign):
    inputs = 1840
    x = np.full((1, 5, 5, inputs), 127, np.int8)
    kernel = np.full((16, 3, 3, inputs), 127 * sign, np.int8)
    scales = np.full(16, 2.0**-22, np.float32)
    requantized = Requantized(Quantization(1.0, -128), Quantization(1.0, 3))
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    operator = WinogradConvolutionS8(stored, None, Movement((1, 1, 1, 1)), requantized)
    operator.reshape(x.shape, shared(1))
    sums = convolve(x, kernel, None, Movement((1, 1, 1, 1)), -128)
    assert np.abs(sums).max() > 0.99 * 2**29
    got = run(operator, x, sums.shape, np.int8, 1)
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(1, 40), st.integers(1, 14)),
    window=st.sampled_from([(3, 3), (3, 3), (5, 5), (7, 7), (1, 1), (2, 3), (1, 4)]),
    strides=STEPS,
    dilations=STEPS,
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    channels=CHANNELS,
    requantized=REQUANTIZED,
    has_bias=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_depthwise(
    seed, batch, size, window, strides, dilations, pads, channels, requantized, has_bias, extreme,
    threads,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    movement = Movement(pads, strides, dilations, channels)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    size = [
        max(s, r - pads[i] - pads[i + 2], 1)
        for i, (s, r) in enumerate(zip(size, reach, strict=True))
    ]
    x = bytes_of(rng, (batch, *size, channels), extreme)
    kernel = bytes_of(rng, (*window, channels), extreme, -127)
    bias = rng.integers(-9000, 9000, channels).astype(np.int32) if has_bias else None
    scales = scales_of(rng, channels, window[0] * window[1])
    operator = TiledDepthwiseS8(
        Quantized(Weight.of(kernel), Weight.of(scales), None, 2),
        None if bias is None else Weight.of(bias),
        movement,
        requantized,
    )
    seen = windows(x, window, movement, requantized.given.zero_point)
    sums = (seen * kernel.astype(np.int64)).sum((3, 4)) + (0 if bias is None else bias)
    assert operator.reshape(x.shape, shared(threads)) == sums.shape[1:3]
    got = run(operator, x, sums.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))


ROWS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 48, 50])
INPUTS = st.sampled_from([1, 2, 3, 15, 16, 17, 64, 129, 1000, 3001])
OUTPUTS = st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 24, 25, 40, 70])


def matrix_of(rng, outputs, inputs, extreme, transposed, single=False):
    """Give a matrix [O, C], its scales, and how it is stored."""
    matrix = bytes_of(rng, (outputs, inputs), extreme, -127)
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
def test_products(seed, rows, inputs, outputs, requantized, transposed, single, extreme, threads):
    rng = np.random.default_rng(seed)
    x = bytes_of(rng, (rows, inputs), extreme)
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, extreme, transposed, single)
    bias = rng.integers(-50000, 50000, outputs).astype(np.int32)
    operator = TiledFullyConnectedS8(quantized, Weight.of(bias), requantized, transposed=transposed)
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.int8, threads)
    sums = (x.astype(np.int64) - requantized.given.zero_point) @ matrix.T.astype(np.int64) + bias
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))


def to_float(sums, row_scales, scales, bias, limits):
    """Give float32(sum) · row scale · scale + bias, the last two operations rounded once."""
    x = sums.astype(np.int32).astype(np.float32) * row_scales[:, None]
    # 64 bits of mantissa hold the product of two float32 numbers.
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
def test_products_to_float(seed, rows, inputs, outputs, zero, limits, transposed, extreme, threads):
    rng = np.random.default_rng(seed)
    x = bytes_of(rng, (rows, inputs), extreme)
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, extreme, transposed)
    bias = rng.standard_normal(outputs).astype(np.float32)
    given = Quantization(float(np.float32(0.03)), zero)
    operator = TiledFullyConnectedS8F32(
        quantized, Weight.of(bias), given, limits, transposed=transposed
    )
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.float32, threads)
    sums = (x.astype(np.int64) - zero) @ matrix.T.astype(np.int64)
    row_scales = np.full(rows, given.scale, np.float32)
    np.testing.assert_array_equal(got, to_float(sums, row_scales, scales, bias, limits))


def quantize_rows(x):
    """Give integers with their zero taken away, and scales, of rows."""
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
def test_products_of_float_rows(seed, rows, inputs, outputs, shift, limits, threads):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)) * 10.0 ** rng.integers(-30, 30, (rows, 1))
    x = (x + shift).astype(np.float32)
    x[rng.random((rows, inputs)) < 0.1] = 0
    matrix, scales, quantized = matrix_of(rng, outputs, inputs, False, False)
    bias = rng.standard_normal(outputs).astype(np.float32)
    operator = TiledFullyConnectedInt8(quantized, Weight.of(bias), limits)
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), np.float32, threads)
    integers, row_scales = quantize_rows(x)
    expected = to_float(integers @ matrix.T.astype(np.int64), row_scales, scales, bias, limits)
    np.testing.assert_array_equal(got, expected)
    # What is quantized differs from the row by half a step, and from its zero point by another.
    off = np.abs(x.astype(np.float64) - integers * row_scales[:, None].astype(np.float64))
    assert (off.max(1) <= 1.01 * row_scales).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 2.0**127])
def test_rows_that_cannot_be_quantized(odd):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 33)).astype(np.float32)
    x[5, 32] = odd
    _, _, quantized = matrix_of(rng, 20, 33, False, False)
    operator = TiledFullyConnectedInt8(quantized, None, (-1.0, 1.0))
    operator.reshape(8, shared(1))
    got = run(operator, x, (8, 20), np.float32, 1)
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
    operator = TiledFullyConnectedInt8(quantized, None)
    operator.reshape(4, shared(1))
    got = run(operator, x, (4, 16), np.float32, 1)
    steps = np.maximum(np.float64(np.ptp(x.astype(np.float64), axis=1)) / 255, 2.0**-127)
    assert (np.abs(got.astype(np.float64) - x).max(1) <= 1.01 * steps).all()
    assert not got[3].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_sums(sign):
    """As many products of the largest magnitude as fit 32 bits."""
    inputs = MOST_CHANNELS
    x = np.full((7, inputs), 127, np.int8)
    matrix = np.full((9, inputs), 127 * sign, np.int8)
    scales = np.full(9, 2.0**-24, np.float32)
    requantized = Requantized(Quantization(1.0, -128), Quantization(1.0, 3))
    quantized = Quantized(Weight.of(matrix), Weight.of(scales), None, 0)
    operator = TiledFullyConnectedS8(quantized, None, requantized)
    operator.reshape(7, shared(2))
    got = run(operator, x, (7, 9), np.int8, 2)
    sums = (x.astype(np.int64) + 128) @ matrix.T.astype(np.int64)
    assert np.abs(sums).min() > 2**31 - 255 * 127
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))
    longer = Quantized(
        Weight.of(np.zeros((1, inputs + 1), np.int8)), Weight.of(scales[:1]), None, 0
    )
    with pytest.raises(UnfitError, match="32 bits"):
        TiledFullyConnectedS8(longer, None, requantized)


def test_halves_go_to_even():
    sums = np.arange(-300, 300, dtype=np.int32)
    requantized = Requantized(Quantization(1.0, 0), Quantization(2.0, 5))
    kernel = Quantized(
        Weight.of(np.zeros((600, 1, 1, 1), np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    operator = TiledConvolutionS8(kernel, Weight.of(sums), Movement(), requantized)
    operator.reshape((1, 1, 1, 1), shared(1))
    got = run(operator, np.zeros((1, 1, 1, 1), np.int8), (600,), np.int8, 1)
    np.testing.assert_array_equal(got, np.clip(np.rint(sums / 2) + 5, -128, 127))


def test_results_far_beyond_the_range():
    """Products with the scale that no integer of 32 bits holds."""
    bias = np.array([2**31 - 1, -(2**31), 1, -1] * 5, np.int32)
    requantized = Requantized(Quantization(255.0, 0), Quantization(1.0, -7), (-100, 90))
    kernel = Quantized(
        Weight.of(np.zeros((20, 1, 1, 1), np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    operator = TiledConvolutionS8(kernel, Weight.of(bias), Movement(), requantized)
    operator.reshape((1, 1, 1, 1), shared(1))
    got = run(operator, np.zeros((1, 1, 1, 1), np.int8), (20,), np.int8, 1)
    np.testing.assert_array_equal(got, [90, -100, 90, -100] * 5)


def shape_of_resnet(threads, columns=40):
    """Give a convolution that is divided into bands and parts."""
    rng = np.random.default_rng(3)
    kernel = bytes_of(rng, (columns, 3, 3, 64), False, -127)
    scales = scales_of(rng, columns, 576)
    requantized = Requantized(Quantization(0.5, -128), Quantization(0.25, -128))
    movement = Movement((1, 1, 1, 1))
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    operator = TiledConvolutionS8(stored, None, movement, requantized)
    x = bytes_of(rng, (2, 40, 30, 64), False)
    operator.reshape(x.shape, shared(threads))
    sums = convolve(x, kernel, None, movement, -128)
    got = run(operator, x, sums.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(sums, scales, requantized))
    return operator.params


def test_bands_and_parts():
    assert shape_of_resnet(1).bands > 1
    params = shape_of_resnet(2)
    assert params.batch * params.bands * params.parts > 2


def weights_of(seed, identity):
    rng = np.random.default_rng(seed)
    kernel = bytes_of(rng, (20, 3, 3, 5), False, -127)
    scales = scales_of(rng, 20, 45)
    bias = rng.integers(-99, 99, 20).astype(np.int32)
    return (
        Quantized(
            Weight.of(kernel, identity and f"{identity}/k"),
            Weight.of(scales, identity and f"{identity}/s"),
            None,
            0,
        ),
        Weight.of(bias, identity and f"{identity}/b"),
    )


def test_sessions_share_what_is_packed():
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    other = Requantized(Quantization(0.5, 1), Quantization(0.125, 2))
    cache = WeightsCache()
    with cache.begin() as first:
        one = TiledConvolutionS8(*weights_of(0, "a"), Movement(), requantized, session=first)
        same = TiledConvolutionS8(
            *weights_of(0, "a"), Movement((1, 1, 1, 1)), requantized, session=first
        )
    assert one._packed_weights == same._packed_weights
    assert (first.counts.misses, first.counts.hits) == (1, 1)
    with cache.begin() as second:
        again = TiledConvolutionS8(*weights_of(0, "a"), Movement(), requantized, session=second)
        scaled = TiledConvolutionS8(*weights_of(0, "a"), Movement(), other, session=second)
        private = TiledConvolutionS8(*weights_of(0, ""), Movement(), requantized, session=second)
    assert one._packed_weights == again._packed_weights
    assert one._packed_weights != scaled._packed_weights
    assert [entry.origin for entry in second.entries()] == [
        "shared",
        "packed",
        "its content has no name",
    ]
    x = bytes_of(np.random.default_rng(1), (1, 6, 6, 5), False)
    for operator in (one, again, private):
        assert operator.reshape(x.shape, shared(1)) == (4, 4)
    results = [run(o, x, (1, 4, 4, 20), np.int8, 1) for o in (one, again, private)]
    assert all((result == results[0]).all() for result in results)


def test_a_hit_reads_no_weights():
    def unread():
        raise AssertionError("weights were read")

    kernel, bias = weights_of(0, "a")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    cache = WeightsCache()
    with cache.begin() as first:
        TiledConvolutionS8(kernel, bias, Movement(), requantized, session=first)

    def hollow(weight):
        return Weight(weight.shape, weight.dtype, weight.identity, unread)

    stored = Quantized(hollow(kernel.integers), hollow(kernel.scale), None, 0)
    with cache.begin() as second:
        TiledConvolutionS8(stored, hollow(bias), Movement(), requantized, session=second)
    assert second.counts.hits == 1


def test_refusals():
    kernel, bias = weights_of(0, "")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    wrong = Quantized(
        Weight.of(np.full((4, 1, 1, 2), -128, np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    with pytest.raises(UnfitError, match="-128"):
        TiledConvolutionS8(wrong, None, Movement(), requantized)
    with pytest.raises(BackendError, match="groups"):
        TiledConvolutionS8(kernel, bias, Movement(groups=3), requantized)
    with pytest.raises(BackendError, match="bias"):
        TiledConvolutionS8(kernel, Weight.of(np.zeros(3, np.int32)), Movement(), requantized)
    large = Requantized(Quantization(3e38, 0), Quantization(1e-30, 0))
    with pytest.raises(UnfitError, match="output scale is"):
        TiledConvolutionS8(kernel, bias, Movement(), large)
    operator = TiledConvolutionS8(kernel, bias, Movement(), requantized)
    with pytest.raises(BackendError, match="5 channels got 6"):
        operator.reshape((1, 8, 8, 6), shared(1))
    with pytest.raises(BackendError, match="larger than the padded input"):
        operator.reshape((1, 2, 8, 5), shared(1))


def quantized_network():
    """Make a model whose steps are each of our kernels."""
    graph = QdqGraph()
    x = graph.quantize(graph.input([1, 3, 11, 11]), 0.03, 3)
    stem = graph.node("Conv", x, graph.weight((32, 3, 3, 3), 0), strides=[2, 2])
    y = graph.quantize(graph.node("Relu", stem), 0.05, -128)
    y = graph.quantize(graph.node("Conv", y, graph.weight((16, 32, 3, 3), 0)), 0.1, 0)
    deep = graph.weight((16, 1, 3, 3), 0)
    y = graph.quantize(graph.node("Conv", y, deep, group=16), 0.1, -5)
    y = graph.quantize(graph.node("Flatten", y), 0.1, -5)
    graph.output(graph.node("MatMul", y, graph.weight((16, 9), 1)))
    return graph.model()


def test_files_of_packed_weights(monkeypatch, tmp_path):
    """What is packed for our kernels is found in the file."""
    monkeypatch.setattr(int8_choice, "ours", lambda: True)
    model = quantized_network()
    x = np.random.default_rng(0).standard_normal((1, 3, 11, 11)).astype(np.float32)
    steps = off_by(model, {"x": x})
    assert set(steps) <= {0, 1}
    assert steps[1] <= 2
    whole = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    bundle = saved(tmp_path / "b.narrow", main=whole)
    results, packs = [], []
    for _ in range(2):
        program = compiled(bundle, tmp_path / "cache")
        packs.append(program.stats()["weights"]["packs"])
        results.append(program.run({"x": x}))
        del program
        gc.collect()
    assert packs == [4, 0]
    for name, first in results[0].items():
        np.testing.assert_array_equal(first, results[1][name])


def test_choice(monkeypatch):
    kernel, bias = weights_of(0, "")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    made = []
    for ours in (True, False):
        monkeypatch.setattr(int8_choice, "ours", lambda ours=ours: ours)
        made.append(int8_choice.convolution_s8(kernel, bias, Movement(), requantized))
    assert isinstance(made[0], TiledConvolutionS8)
    assert isinstance(made[1], ConvolutionS8)
    x = bytes_of(np.random.default_rng(1), (2, 7, 6, 5), False)
    for operator in made:
        assert operator.reshape(x.shape, shared(1)) == (5, 4)
    first, second = (run(operator, x, (2, 5, 4, 20), np.int8, 1) for operator in made)
    np.testing.assert_array_equal(first, second)
