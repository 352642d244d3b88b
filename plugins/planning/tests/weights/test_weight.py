"""Weights that are computed when they are needed: elements, names, and storage, against numpy."""

from __future__ import annotations

import dataclasses
import hashlib

import ml_dtypes
import numpy as np
import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Blocks, Quantized, Weight, digest

pytestmark = pytest.mark.anywhere
RNG = np.random.default_rng(12)
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


def integers(*shape):
    return RNG.integers(-100, 100, shape).astype(np.int8)


def channels(array, axis, scale, zero):
    """Return integers dequantized along an axis, by numpy."""
    if scale.size == 1:
        return (array.astype(np.float32) - zero.reshape(-1)[0]) * scale.reshape(-1)[0]
    shape = [-1 if each == axis else 1 for each in range(array.ndim)]
    return (array.astype(np.float32) - zero.reshape(shape)) * scale.reshape(shape)


def quantized(shape, axis, count):
    """Return a dequantized weight of `count` scales along an axis."""
    array, scale = integers(*shape), RNG.random(count).astype(np.float32)
    zero = integers(count)
    storage = Quantized(Weight.of(array, "i"), Weight.of(scale, "s"), Weight.of(zero, "z"), axis)
    elements = channels(array, axis, scale, zero)
    return dataclasses.replace(Weight.of(elements, "w"), quantized=storage, stored="int8")


def assert_stored(weight):
    """Compare a weight's elements with what its storage says."""
    storage = weight.quantized
    assert storage.integers.shape == weight.shape
    zero = storage.zero.array()
    elements = channels(storage.integers.array(), storage.axis, storage.scale.array(), zero)
    np.testing.assert_array_equal(weight.array(), elements)


def test_a_digest_separates_its_parts():
    """By their lengths in bytes, so that no two lists of parts have one."""
    assert digest("ab", 1) == hashlib.sha256(b"2,1:ab1").hexdigest()
    assert digest("é") == hashlib.sha256("2:é".encode()).hexdigest()
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", "")}) == 4


def test_elements_are_computed_each_time_and_dense():
    calls = []
    array = np.arange(6, dtype=np.float32).reshape(2, 3)

    def compute():
        calls.append(1)
        return array.T

    weight = Weight((3, 2), FLOAT, "w", compute)
    for _ in range(2):
        found = weight.array()
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, array.T)
    assert len(calls) == 2
    assert (weight.size, weight.nbytes) == (6, 24)
    assert (Weight.of(np.zeros((), np.float64)).size, Weight.of(np.zeros((0, 3))).nbytes) == (1, 0)


def test_elements_of_another_type_are_an_error():
    weight = Weight((2,), FLOAT, "w", lambda: np.zeros(2))
    with pytest.raises(BackendError, match="a weight of float64 was to be one of float32"):
        weight.array()


def test_a_view_is_not_compared_with_a_hash():
    array = np.arange(4, dtype=np.float32)

    def refuse():
        raise BackendError("changed")

    weight = Weight((4,), FLOAT, "w", refuse, unchecked=lambda: array)
    assert np.shares_memory(weight.view(), array)
    assert np.shares_memory(weight.reshape(2, 2).view(), array)
    with pytest.raises(BackendError, match="changed"):
        weight.array()
    with pytest.raises(BackendError, match="changed"):
        dataclasses.replace(weight, unchecked=None).view()


def test_a_check_sees_dense_elements():
    seen = []

    def check(array):
        seen.append(array.flags.c_contiguous)
        if array[0, 0]:
            raise BackendError("no")

    weight = Weight((3, 2), FLOAT, "w", lambda: np.zeros((2, 3), np.float32).T).checked(check)
    assert weight.identity == "w"
    weight.array()
    assert seen == [True]
    with pytest.raises(BackendError, match="no"):
        Weight.of(np.ones((2, 2), np.float32)).checked(check).array()


def test_a_recipe_names_what_it_computes():
    drops = []
    weight = dataclasses.replace(
        Weight.of(np.arange(6, dtype=np.float32), "w"), drop=lambda: drops.append(1)
    )
    doubled = weight.then("double", lambda array: array * 2)
    np.testing.assert_array_equal(doubled.array(), np.arange(6) * 2)
    assert doubled.identity == digest("double", "w")
    assert (doubled.shape, doubled.dtype) == ((6,), FLOAT)
    rounded = weight.then("round", lambda a: a[:3].astype(np.int8), [3], np.dtype(np.int8))
    assert (rounded.shape, rounded.dtype.name) == ((3,), "int8")
    doubled.drop()
    assert drops == [1]
    assert Weight.of(np.zeros(2)).then("double", lambda array: array).identity == ""
    Weight.of(np.zeros(2)).drop()  # does nothing


def test_casts():
    weight = dataclasses.replace(quantized((4, 2), 0, 4), blocks=None)
    half = weight.cast(HALF)
    np.testing.assert_array_equal(half.array(), weight.array().astype(np.float16))
    assert weight.cast(FLOAT) is weight
    # A wider type keeps how it is stored, one of the same or a smaller size does not.
    assert (half.quantized, half.narrow, half.stored) == (None, None, "")
    wide = weight.cast(np.dtype(np.float64))
    assert (wide.narrow, wide.quantized, wide.stored) == (weight, weight.quantized, "int8")
    assert Weight.of(np.zeros(2, np.int32)).cast(FLOAT).narrow is None
    assert len({weight.identity, half.identity, wide.identity}) == 3


SHAPES = [
    # shape, axis, scales, other shape, the axis after that or None where it is lost
    ((4, 6), 0, 4, (4, 2, 3), 0),
    ((4, 6), 0, 4, (2, 2, 6), None),
    ((2, 4, 3), 1, 4, (8, 3), 0),
    ((2, 4, 3), 1, 4, (2, 4, 3, 1), 1),
    ((2, 4, 3), 1, 4, (24,), None),
    ((4, 6), 1, 6, (4, 6, 1), 1),
    ((4, 6), 1, 6, (24,), 0),
    ((300, 2), 0, 300, (300, 2, 1), 0),
    ((4, 6), 1, 1, (24,), 0),
    ((4, 6), 1, 1, (2, 12), 0),
    ((1, 1), 1, 1, (), None),
]


@pytest.mark.parametrize(("shape", "axis", "count", "other", "after"), SHAPES)
def test_the_storage_of_a_reshaped_weight(shape, axis, count, other, after):
    weight = quantized(shape, axis, count)
    found = weight.reshape(*other)
    np.testing.assert_array_equal(found.array(), weight.array().reshape(other))
    if after is None:
        assert found.quantized is None
    else:
        assert found.quantized.axis == after
        assert_stored(found)


def test_a_reshape_without_zero_points_and_without_scales():
    weight = quantized((2, 4, 3), 1, 4)
    storage = dataclasses.replace(weight.quantized, zero=None)
    found = storage.reshape((8, 3))
    assert found.zero is None
    np.testing.assert_array_equal(found.scale.array(), np.tile(storage.scale.array(), 2))
    empty = Quantized(Weight.of(integers(0, 3)), Weight.of(np.zeros(0, np.float32)), None, 0)
    assert empty.reshape((0,)) is None
    assert weight.reshape(2, 4, 3) is weight
    assert weight.reshape(2, 4, 3, 1).quantized.scale is weight.quantized.scale
    assert Weight.of(np.zeros((2, 3))).reshape(6).quantized is None


@pytest.mark.parametrize("axes", [(2, 0, 1), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_storage_of_a_transposed_weight(axes, axis):
    weight = quantized((2, 3, 4), axis, (2, 3, 4)[axis])
    found = weight.transpose(*axes)
    np.testing.assert_array_equal(found.array(), weight.array().transpose(axes))
    assert (found.permuted_from, found.stored) == ((weight, axes), "int8")
    assert_stored(found)
    back = found.transpose(*np.argsort(axes).tolist())
    assert back is weight
    twice = found.transpose(1, 2, 0)
    np.testing.assert_array_equal(twice.array(), weight.array().transpose(axes).transpose(1, 2, 0))
    assert twice.permuted_from is None or twice.permuted_from[0] is weight
    assert weight.transpose(0, 1, 2) is weight


def blocks(*shape, **more):
    scale = Weight.of(RNG.random(shape).astype(np.float16), "s")
    return Blocks(Weight.of(integers(*shape), "i"), scale, None, 1, shape[-1], 8, **more)


def test_which_transposes_keep_blocks():
    flat = dataclasses.replace(Weight.of(np.zeros((2, 3), np.float32), "w"), blocks=blocks(2, 3))
    assert flat.transpose(1, 0).blocks.transposed is True
    assert (
        dataclasses.replace(flat, blocks=blocks(2, 3, transposed=True))
        .transpose(1, 0)
        .blocks.transposed
        is False
    )
    several = dataclasses.replace(
        Weight.of(np.zeros((2, 3, 4), np.float32), "w"), blocks=blocks(6, 4, matrices=2)
    )
    assert several.transpose(0, 2, 1).blocks.transposed is True
    assert several.transpose(2, 1, 0).blocks is None
    assert Weight.of(np.zeros((2, 3))).transpose(1, 0).blocks is None


def test_a_weight_times_a_number():
    weight = quantized((4, 6), 0, 4)
    assert weight.times(np.float32(1)) is weight
    found = weight.times(np.float32(0.5))  # a power of two: no order of roundings
    np.testing.assert_array_equal(found.array(), weight.array() * np.float32(0.5))
    assert_stored(found)
    assert found.stored == "int8"
    assert found.identity != weight.times(np.float32(0.25)).identity
    assert Weight.of(np.ones(2, np.float32)).times(np.float32(3)).quantized is None
    stored = dataclasses.replace(Weight.of(np.ones((2, 3), np.float32)), blocks=blocks(2, 3))
    scale = stored.times(np.float32(3)).blocks.scale
    assert scale.dtype == FLOAT
    np.testing.assert_array_equal(
        scale.array(), stored.blocks.scale.array().astype(np.float32) * np.float32(3)
    )


def test_the_name_of_an_element():
    narrow = blocks(2, 3)
    assert (narrow.element, narrow.matrices, narrow.common) == ("int8", 1, 0)
    assert dataclasses.replace(narrow, bits=4).element == "int4"
    eight = Weight.of(np.zeros((2, 3), ml_dtypes.float8_e4m3fn))
    assert dataclasses.replace(narrow, integers=eight).element == "float8_e4m3fn"
