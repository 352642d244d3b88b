"""Quantization and lookup tables; oracle: numpy in float32, bit for bit."""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, FLAT, Cases

from narrowpass_xnn_cpu.native import calls, kernels
from narrowpass_xnn_cpu.native.library import extension

CASES = Cases()
SCALE = np.float32(0.037)
ZEROS = (-128, 0, 3, 127)


def steps(x, scale, low, high):
    """Return the steps of elements: halves to even, clamped."""
    return np.clip(np.rint(x / scale), np.float32(low), np.float32(high))


def to_int8(x, zero, scale=SCALE):
    return (steps(x, scale, -128 - zero, 127 - zero) + zero).astype(np.int8)


@CASES.of("NP_QUANTIZE", count=FLAT, zero=ZEROS)
def quantize(kernel, count, zero):
    x = 4 * kernel.floats(count)
    kernel.expect(kernels.quantize(count, SCALE, zero), [x], to_int8(x, zero))


@CASES.of("NP_QUANTIZE", rows=(0, 1, 3, 700), columns=EDGES[1:], zero=ZEROS)
def multiply_and_quantize(kernel, rows, columns, zero):
    x, factors = 4 * kernel.floats(rows, columns), kernel.floats(columns)
    params = kernels.quantize(rows * columns, SCALE, zero, columns)
    kernel.expect(params, [x, factors], to_int8(x * factors, zero))


@CASES.of("NP_DEQUANTIZE", count=FLAT, zero=ZEROS)
def dequantize(kernel, count, zero):
    x = kernel.bytes(count)
    expected = (x.astype(np.int32) - zero).astype(np.float32) * SCALE
    kernel.expect(kernels.dequantize(count, SCALE, zero), [x], expected)


def sixteen_bits(is_signed):
    limits = np.iinfo(np.int16 if is_signed else np.uint16)
    return limits, (limits.min, limits.max, limits.min + 32768 + 5)


@CASES.of("NP_QUANTIZE16", count=FLAT, is_signed=(0, 1), zero=(0, 1, 2))
def quantize_16(kernel, count, is_signed, zero):
    limits, zeros = sixteen_bits(is_signed)
    x = 900 * kernel.floats(count)
    least, most = limits.min - zeros[zero], limits.max - zeros[zero]
    expected = steps(x, SCALE, least, most).astype(np.int64) + zeros[zero]
    params = kernels.quantize16(count, SCALE, zeros[zero], is_signed=bool(is_signed))
    kernel.expect(params, [x], expected.astype(limits.dtype))


@CASES.of("NP_DEQUANTIZE16", count=FLAT, is_signed=(0, 1), zero=(0, 1, 2))
def dequantize_16(kernel, count, is_signed, zero):
    limits, zeros = sixteen_bits(is_signed)
    x = kernel.rng.integers(limits.min, limits.max, count, limits.dtype, endpoint=True)
    expected = (x.astype(np.int64) - zeros[zero]).astype(np.float32) * SCALE
    params = kernels.quantize16(count, SCALE, zeros[zero], is_signed=bool(is_signed))
    kernel.expect(params, [x], expected)


@CASES.of("NP_FAKE_QUANTIZE", count=FLAT, is_signed=(0, 1), zero=(0, 1, 2))
def fake_quantize(kernel, count, is_signed, zero):
    limits, zeros = sixteen_bits(is_signed)
    x = 900 * kernel.floats(count)
    expected = steps(x, SCALE, limits.min - zeros[zero], limits.max - zeros[zero]) * SCALE
    params = kernels.quantize16(count, SCALE, zeros[zero], is_signed=bool(is_signed))
    kernel.expect(params, [x], expected)


@CASES.of("NP_FAKE_QUANTIZE_CHANNELS", outer=(1, 2, 3), channels=EDGES[1:], inner=EDGES[1:])
def fake_quantize_channels(kernel, outer, channels, inner):
    x = 4 * kernel.floats(outer, channels, inner)
    table = np.empty((3, channels), np.float32)
    table[0] = kernel.rng.uniform(0.01, 0.1, channels)
    table[1], table[2] = -kernel.rng.integers(0, 129, channels), 127
    expected = steps(x, *table[:, :, None]) * table[0][:, None]
    kernel.expect(kernels.fake_quantize_channels(x.size, inner, table), [x], expected)


@CASES.of("NP_TABLE", count=FLAT)
def look_up(kernel, count):
    x, entries = kernel.bytes(count).view(np.uint8), kernel.bytes(256).view(np.uint8)
    kernel.expect(kernels.lookup_table(count, entries.tobytes()), [x], entries[x])


@CASES.of("NP_DYNAMIC_RANGE", count=FLAT, sign=(-1, 0, 1))
def dynamic_range(kernel, count, sign):
    x = kernel.floats(count)
    x = sign * np.abs(x) if sign else x  # 0 is in the range in any case
    low, high = x.min(initial=0.0), x.max(initial=0.0)
    scale = (high - low) / np.float32(255) if low != high else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255) - 128
    expected = np.zeros(8, np.uint8)
    expected[:4].view(np.float32)[0], expected[4:5].view(np.int8)[0] = scale, zero
    params, workspace = kernels.dynamic_range(count, kernel.threads)
    kernel.expect(params, [x], expected, workspace=workspace)


@CASES.of("NP_DYNAMIC_QUANTIZE", count=FLAT, zero=ZEROS)
def dynamic_quantize(kernel, count, zero):
    x = 4 * kernel.floats(count)
    given = [x, np.array([SCALE]), np.array([zero], np.int8)]
    kernel.expect(kernels.dynamic_range(count, 1)[0], given, to_int8(x, zero))


@CASES.of("NP_DYNAMIC_DEQUANTIZE", count=FLAT, zero=ZEROS)
def dynamic_dequantize(kernel, count, zero):
    x = kernel.bytes(count)
    given = [x, np.array([SCALE]), np.array([zero], np.int8)]
    expected = (x.astype(np.int32) - zero).astype(np.float32) * SCALE
    params = calls.parameters("NP_DYNAMIC_DEQUANTIZE", (count, 0))
    assert extension().ffi.typeof(params).cname == "struct np_dynamic_range_params *"
    kernel.expect(params, given, expected)
