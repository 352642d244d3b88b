"""Blocks of integers hold what the library gguf dequantizes them to."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from narrowpass_gguf.blocks import LAYOUTS, integers_of, packed_of, scales_of, zeros_of

RNG = np.random.default_rng(0)
ROWS, INPUTS = 5, 512


def random_blocks(kind):
    """Return bytes of rows; the float16 numbers in them are finite, and some scales are 0."""
    layout = LAYOUTS[kind]
    raw = RNG.integers(0, 256, (ROWS, INPUTS // layout.elements, layout.size), np.uint8)
    halves = (RNG.standard_normal((*raw.shape[:2], 2)) * 0.1).astype("<f2")
    halves[0, 0, 0] = 0
    numbers = halves.view(np.uint8).reshape(*raw.shape[:2], 4)
    if kind == Kind.Q6_K:
        raw[:, :, -2:] = numbers[:, :, :2]
    else:
        size = 4 if layout.offset else 2
        raw[:, :, :size] = numbers[:, :, :size]
    return raw.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_forms_hold_the_numbers_of_a_type(kind):
    raw, layout = random_blocks(kind), LAYOUTS[kind]
    expected = gguf.dequantize(raw, kind)
    scales = np.repeat(scales_of(raw, layout).astype(np.float64), layout.block, axis=1)
    if not layout.offset:
        found = (integers_of(raw, layout).astype(np.float64) * scales).astype(np.float32)
        # An integer times a float16 or a float32 of at most 19 bits is rounded once by both.
        np.testing.assert_array_equal(found, expected)
        return
    zeros = np.repeat(zeros_of(raw, layout).astype(np.float64), layout.block, axis=1)
    found = (integers_of(raw, layout).astype(np.float64) - zeros) * scales
    # A zero point is rounded to float32, 2⁻²⁴ of the minimum; theirs rounds twice.
    least = np.abs(zeros * scales) + np.abs(expected)
    assert (np.abs(found - expected) <= 2**-22 * least).all()


@pytest.mark.parametrize("kind", [k for k, v in LAYOUTS.items() if v.offset], ids=lambda k: k.name)
def test_packed_integers_have_the_first_element_in_the_low_bits(kind):
    raw, layout = random_blocks(kind), LAYOUTS[kind]
    packed, integers = packed_of(raw, layout), integers_of(raw, layout)
    unpacked = packed if layout.bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1)
    np.testing.assert_array_equal(unpacked.reshape(ROWS, INPUTS), integers)
    assert packed.shape == (ROWS, INPUTS // layout.block, layout.block * layout.bits // 8)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_what_the_library_quantizes(kind):
    wide = RNG.standard_normal((ROWS, INPUTS)).astype(np.float32)
    raw, layout = gguf.quantize(wide, kind), LAYOUTS[kind]
    scales = np.repeat(scales_of(raw, layout).astype(np.float32), layout.block, axis=1)
    found = integers_of(raw, layout).astype(np.float32)
    if layout.offset:
        found = found - np.repeat(zeros_of(raw, layout), layout.block, axis=1)
    np.testing.assert_allclose(found * scales, gguf.dequantize(raw, kind), atol=1e-6)
