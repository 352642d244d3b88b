"""Int8 convolutions by the plugin's own kernels, equal to int64 accumulators requantized."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_kernels_kit import (
    CHANNELS,
    REQUANTIZED,
    STEPS,
    bytes_of,
    code,
    convolve,
    im2col_view,
    requantize,
    run,
    scales_of,
)

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.own import int8_convolution, int8_depthwise, int8_winograd
from narrowpass_xnn_cpu.native.own.tiling import balance_tasks
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution, Offsets
from narrowpass_xnn_cpu.native.problems.quantization import LEAST_WEIGHT, Quantization, Requantized
from narrowpass_xnn_cpu.native.runtime.pool import shared

__all__ = ["code"]  # a fixture that all tests of this module have


RAISED = st.tuples(st.booleans(), st.booleans())
"""Whether input and output are stored with an offset of +128, where the kernel can do that."""


def run_raised(operator, x, shape, threads, raised):
    """Run an operator on x; what it reads and writes may have the offset, which is undone."""
    if operator.can_offset:
        operator = operator.variant(offsets=Offsets(*raised))
        x = x ^ np.int8(-128 if raised[0] else 0)
    assert operator.reshape(x.shape, shared(threads)) == shape[1:3]
    got = run(operator, x, shape, np.int8, threads)
    got = got ^ np.int8(-128) if operator.problem.offsets.output else got
    return got, operator


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    kernel_shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=STEPS,
    dilations=STEPS,
    pads=st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 3)] * 4)),
    inputs=CHANNELS,
    outputs=CHANNELS,
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    requantized=REQUANTIZED,
    has_bias=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
    raised=RAISED,
)
def test_convolutions(
    seed, batch, size, kernel_shape, strides, dilations, pads, inputs, outputs, groups, requantized,
    has_bias, extreme, threads, raised,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads, strides, dilations, groups)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    size = [
        max(s, r - pads[i] - pads[i + 2], 1)
        for i, (s, r) in enumerate(zip(size, reach, strict=True))
    ]
    x = bytes_of(rng, (batch, *size, inputs * groups), extreme)
    kernel = bytes_of(rng, (outputs * groups, *kernel_shape, inputs), extreme, LEAST_WEIGHT)
    bias = rng.integers(-50000, 50000, outputs * groups).astype(np.int32) if has_bias else None
    scales = scales_of(rng, outputs * groups, inputs * kernel_shape[0] * kernel_shape[1])
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(
            Quantized(Weight.of(kernel), Weight.of(scales), None, 0),
            None if bias is None else Weight.of(bias),
            attributes,
            requantized,
        )
    )
    accumulators = convolve(x, kernel, bias, attributes, requantized.input.zero_point)
    got, _ = run_raised(operator, x, accumulators.shape, threads, raised)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))


@settings(max_examples=50, deadline=None, derandomize=True)
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
    attributes = ConvAttributes(pads)
    size = [max(s, 3 - a - b, 1) for s, a, b in zip(size, pads, pads[2:], strict=False)]
    x = bytes_of(rng, (batch, *size, inputs), extreme)
    kernel = bytes_of(rng, (outputs, 3, 3, inputs), extreme, LEAST_WEIGHT)
    bias = rng.integers(-50000, 50000, outputs).astype(np.int32) if has_bias else None
    scales = scales_of(rng, outputs, 9 * inputs)
    operator = int8_winograd.WINOGRAD.create(
        Convolution(
            Quantized(Weight.of(kernel), Weight.of(scales), None, 0),
            None if bias is None else Weight.of(bias),
            attributes,
            requantized,
        )
    )
    accumulators = convolve(x, kernel, bias, attributes, requantized.input.zero_point)
    assert operator.reshape(x.shape, shared(threads)) == accumulators.shape[1:3]
    got = run(operator, x, accumulators.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))


@pytest.mark.parametrize("sign", [1, -1])
def test_winograd_of_the_largest_accumulators(sign):
    inputs = 1824
    x = np.full((1, 5, 5, inputs), 127, np.int8)
    kernel = np.full((16, 3, 3, inputs), 127 if sign > 0 else LEAST_WEIGHT, np.int8)
    scales = np.full(16, 2.0**-22, np.float32)
    requantized = Requantized(Quantization(1.0, -128), Quantization(1.0, 3))
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    operator = int8_winograd.WINOGRAD.create(
        Convolution(stored, None, ConvAttributes((1, 1, 1, 1)), requantized)
    )
    operator.reshape(x.shape, shared(1))
    accumulators = convolve(x, kernel, None, ConvAttributes((1, 1, 1, 1)), -128)
    assert np.abs(accumulators).max() > 0.99 * 2**29
    got = run(operator, x, accumulators.shape, np.int8, 1)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(1, 40), st.integers(1, 14)),
    kernel_shape=st.sampled_from([(3, 3), (3, 3), (5, 5), (7, 7), (1, 1), (2, 3), (1, 4)]),
    strides=STEPS,
    dilations=STEPS,
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    channels=CHANNELS,
    requantized=REQUANTIZED,
    has_bias=st.booleans(),
    extreme=st.booleans(),
    threads=st.sampled_from([1, 2]),
    raised=RAISED,
)
def test_depthwise(
    seed, batch, size, kernel_shape, strides, dilations, pads, channels, requantized, has_bias,
    extreme, threads, raised,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads, strides, dilations, channels)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    size = [
        max(s, r - pads[i] - pads[i + 2], 1)
        for i, (s, r) in enumerate(zip(size, reach, strict=True))
    ]
    x = bytes_of(rng, (batch, *size, channels), extreme)
    kernel = bytes_of(rng, (*kernel_shape, channels), extreme, LEAST_WEIGHT)
    bias = rng.integers(-9000, 9000, channels).astype(np.int32) if has_bias else None
    scales = scales_of(rng, channels, kernel_shape[0] * kernel_shape[1])
    operator = int8_depthwise.create(
        Convolution(
            Quantized(Weight.of(kernel), Weight.of(scales), None, 2),
            None if bias is None else Weight.of(bias),
            attributes,
            requantized,
            depthwise=True,
        )
    )
    seen = im2col_view(x, kernel_shape, attributes, requantized.input.zero_point)
    accumulators = (seen * kernel.astype(np.int64)).sum((3, 4)) + (0 if bias is None else bias)
    got, _ = run_raised(operator, x, accumulators.shape, threads, raised)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))


def test_halves_go_to_even():
    accumulators = np.arange(-300, 300, dtype=np.int32)
    requantized = Requantized(Quantization(1.0, 0), Quantization(2.0, 5))
    kernel = Quantized(
        Weight.of(np.zeros((600, 1, 1, 1), np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(kernel, Weight.of(accumulators), ConvAttributes(), requantized)
    )
    operator.reshape((1, 1, 1, 1), shared(1))
    got = run(operator, np.zeros((1, 1, 1, 1), np.int8), (600,), np.int8, 1)
    np.testing.assert_array_equal(got, np.clip(np.rint(accumulators / 2) + 5, -128, 127))


def test_results_far_beyond_the_range():
    """Requantized values that no 32-bit integer holds."""
    bias = np.array([2**31 - 1, -(2**31), 1, -1] * 5, np.int32)
    requantized = Requantized(Quantization(255.0, 0), Quantization(1.0, -7), (-100, 90))
    kernel = Quantized(
        Weight.of(np.zeros((20, 1, 1, 1), np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(kernel, Weight.of(bias), ConvAttributes(), requantized)
    )
    operator.reshape((1, 1, 1, 1), shared(1))
    got = run(operator, np.zeros((1, 1, 1, 1), np.int8), (20,), np.int8, 1)
    np.testing.assert_array_equal(got, [90, -100, 90, -100] * 5)


@pytest.mark.parametrize(("extent", "stride"), [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("inputs", [16, 18])
def test_raised_images_are_read_in_place(extent, stride, inputs):
    rng = np.random.default_rng(7)
    kernel = bytes_of(rng, (70, extent, extent, inputs), False, LEAST_WEIGHT)
    scales = scales_of(rng, 70, inputs * extent**2)
    requantized = Requantized(Quantization(0.5, -9), Quantization(0.25, 4))
    attributes = ConvAttributes(strides=(stride, stride))
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(stored, None, attributes, requantized)
    )
    x = bytes_of(rng, (2, 33, 31, inputs), False)
    accumulators = convolve(x, kernel, None, attributes, -9)
    got, operator = run_raised(operator, x, accumulators.shape, 2, (True, False))
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))
    whole = extent * inputs % 4 == 0
    assert operator.params.in_place == (operator.can_offset and whole)


def shape_of_resnet(threads, columns=40):
    """Check a convolution that is divided into row tiles and parts; return its parameters."""
    rng = np.random.default_rng(3)
    kernel = bytes_of(rng, (columns, 3, 3, 64), False, LEAST_WEIGHT)
    scales = scales_of(rng, columns, 576)
    requantized = Requantized(Quantization(0.5, -128), Quantization(0.25, -128))
    attributes = ConvAttributes((1, 1, 1, 1))
    stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(stored, None, attributes, requantized)
    )
    x = bytes_of(rng, (2, 130, 60, 64), False)
    operator.reshape(x.shape, shared(threads))
    accumulators = convolve(x, kernel, None, attributes, -128)
    got = run(operator, x, accumulators.shape, np.int8, threads)
    np.testing.assert_array_equal(got, requantize(accumulators, scales, requantized))
    return operator.params


def test_row_tiles_and_parts():
    assert shape_of_resnet(1).geometry.row_tiles > 1
    geometry = shape_of_resnet(2).geometry
    assert geometry.image.batch * geometry.row_tiles * geometry.parts > 2


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize(
    ("rows", "most", "whole", "panels"),
    [(56, 19, 1, 1), (3136, 448, 14, 2), (28, 10, 1, 2), (14, 5, 1, 16), (7, 7, 1, 8)],
)
def test_threads_get_equal_shares(rows, most, whole, panels, threads):
    tile, tiles, part, parts = balance_tasks(rows, most, whole, 1, panels, threads)
    assert tile <= most
    assert (tiles - 1) * tile < rows <= tiles * tile
    assert (parts - 1) * part < panels <= parts * part
    busy = [0] * threads
    for task in range(tiles * parts):
        done, columns = task // parts * tile, task % parts * part
        work = min(tile, rows - done) * min(part, panels - columns)
        busy[busy.index(min(busy))] += work
    # Output tiles and panels are not divided.
    assert max(busy) <= (1.1 if threads == 2 else 1.3) * rows * panels / threads
    assert balance_tasks(rows, most, whole, 1, panels, 1)[2:] == (panels, 1)
