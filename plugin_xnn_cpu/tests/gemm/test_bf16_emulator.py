"""The emulator of AVX512-BF16 that other tests stand on, against numpy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from bf16_kit import bfloat16, executed

from narrowpass_xnn_cpu.native import isa

RNG = np.random.default_rng(8)


def words(kind: str, count: int) -> np.ndarray:
    """Return 32-bit words: pairs of normal bfloat16 numbers, or random bits."""
    if kind == "bits":
        return RNG.integers(0, 1 << 32, count, np.uint32)
    scale = 2.0 ** RNG.integers(-70, 60, count) if kind == "scales" else 1.0
    return (RNG.standard_normal(count) * scale).astype(np.float32).view(np.uint32)


def halves(bits: np.ndarray, which: int) -> np.ndarray:
    """Return the bfloat16 numbers in the lower (0) or upper (1) halves, subnormal ones as 0."""
    numbers = (bits << 16 if which == 0 else bits & np.uint32(0xFFFF0000)).view(np.float32)
    return without_subnormals(numbers)


def without_subnormals(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x) < 2.0**-126, np.float32(0), x)


@np.errstate(all="ignore")
def dot_pairs(accumulators: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add the dot dot_pairs of bfloat16 pairs as VDPBF16PS does: float32 after each addition."""
    for half in (1, 0):
        # x86's long double has 64 bits: enough for the exact sum to be rounded but once, nearly.
        exact = halves(a, half).astype(np.longdouble) * halves(b, half).astype(np.longdouble)
        accumulators = without_subnormals(
            (exact + without_subnormals(accumulators).astype(np.longdouble)).astype(np.float32)
        )
    return accumulators


FORMS = {
    "dot_registers": (16, 0, False, None),
    "dot_low_registers": (16, 0, False, None),
    "dot_memory": (16, 0, False, None),
    "dot_near": (16, -128, False, None),
    "dot_far": (16, 132, False, None),
    "dot_indexed": (16, 80, False, None),
    "dot_broadcast": (16, 12, True, None),
    "dot_merged": (16, 0, False, "merge"),
    "dot_zeroed": (16, 16, True, "zero"),
    "dot_half": (8, 0, False, None),
}


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal float32 numbers; signs of zeros and bits of NaN may differ."""
    np.testing.assert_array_equal(got.view(np.float32), expected.view(np.float32))


def call(library, name, first, second, third, mask):
    """Execute a form; return its destination, a vector of 64 bytes."""
    destination = first.copy()
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (destination, second)]
    at = ctypes.c_void_p(third.ctypes.data + 256)
    getattr(library, name)(*pointers, at, ctypes.c_uint64(mask))
    return destination


@pytest.mark.parametrize("kind", ["numbers", "scales", "bits"])
@pytest.mark.parametrize("name", FORMS)
def test_dot_products(bf16_emulated, name, kind):
    lanes, offset, is_broadcast, masked = FORMS[name]
    for _ in range(20):
        first, second = words("numbers" if kind == "bits" else kind, 16), words(kind, 16)
        third = words(kind, 16 * 9)
        mask = int(RNG.integers(0, 1 << 16)) if masked else 0xFFFF
        got = call(bf16_emulated, name, first, second, third, mask)
        at = 64 + offset // 4
        source = np.repeat(third[at], 16) if is_broadcast else third[at : at + 16]
        expected = dot_pairs(first.view(np.float32), second, source)
        chosen = np.array([mask >> i & 1 for i in range(16)], bool)
        rest = np.zeros(16, np.float32) if masked == "zero" else first.view(np.float32)
        expected = np.where(chosen, expected, rest)
        expected[lanes:] = 0
        same(got, expected.astype(np.float32))


@pytest.mark.parametrize("kind", ["numbers", "scales", "bits"])
@pytest.mark.parametrize(
    ("name", "pairs", "offset", "masked"),
    [
        ("rounded", False, None, None),
        ("rounded_memory", False, 64, "merge"),
        ("rounded_zeroed", False, None, "zero"),
        ("rounded_pairs", True, 0, None),
        ("rounded_pairs_memory", True, 0, "merge"),
    ],
)
def test_conversions_round_to_nearest_even(bf16_emulated, name, pairs, offset, masked, kind):
    for _ in range(20):
        first, second, third = words("numbers", 16), words(kind, 16), words(kind, 16 * 9)
        mask = int(RNG.integers(0, 1 << 32)) if masked else 0xFFFFFFFF
        got = call(bf16_emulated, name, first, second, third, mask).view(np.uint16)
        source = second if offset is None else third[64 + offset // 4 :][:16]
        given = np.concatenate([source, second]) if pairs else source
        number = bfloat16(given.view(np.float32))
        count = len(given)
        chosen = np.array([mask >> i & 1 for i in range(count)], bool)
        old = first.view(np.uint16)[:count].astype(np.uint32) << 16
        rest = np.zeros(count, np.float32) if masked == "zero" else old.view(np.float32)
        expected = np.zeros(32, np.float32)
        expected[:count] = np.where(chosen, number, rest)
        same(got.astype(np.uint32) << 16, expected)


def test_the_emulator_counts_instructions(bf16_emulated):
    before = executed()
    call(bf16_emulated, "dot_memory", words("numbers", 16), words("numbers", 16),
         words("numbers", 144), 0)  # fmt: skip
    counted = [after - old for after, old in zip(executed(), before, strict=True)]
    assert counted == ([0, 0, 0] if "avx512_bf16" in isa.flags() else [1, 0, 0])
