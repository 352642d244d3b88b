"""Metrics against formulas in exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from narrowpass.errors import DataError
from narrowpass_analysis.metrics import (
    Difference,
    Tolerance,
    cosine,
    difference,
    max_abs,
    relative,
    sqnr,
    top1,
)

_DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def _fractions(array):
    return [Fraction(float(x)) for x in np.asarray(array).reshape(-1)]


def _root(square):
    """Return a float of the square root of a fraction, however large or small."""
    if square == 0:
        return 0.0
    shift = 2 * ((square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    return math.sqrt(square / Fraction(2) ** shift) * 2.0 ** (shift // 2)


def _exact(a, b):
    """Compute the metrics without numpy and without rounding before the last step."""
    a, b = _fractions(a), _fractions(b)
    errors = [x - y for x, y in zip(a, b, strict=True)]
    largest_error, largest = max(map(abs, errors)), max(map(abs, b))
    noise, signal = sum(e * e for e in errors), sum(y * y for y in b)
    dot, norm = sum(x * y for x, y in zip(a, b, strict=True)), sum(x * x for x in a)
    return {
        "max_abs": float(largest_error),
        "relative": float(largest_error / largest) if largest else math.inf,
        "sqnr": 20 * math.log10(_root(signal / noise)) if signal else -math.inf,
        "cosine": float(dot) / (_root(norm) * _root(signal)) if norm * signal else 0.0,
    }


_FLOATS = st.floats(-1e100, 1e100, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-100)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.float64, n, elements=_FLOATS), hnp.arrays(np.float64, n, elements=_FLOATS)
        )
    )
)
def test_floats_follow_the_formulas(pair):
    a, b = pair
    found = difference(a, b)
    if np.array_equal(a, b):
        assert found.equal
        assert (found.max_abs, found.relative, found.sqnr, found.cosine) == (0, 0, math.inf, 1)
        return
    expected = _exact(a, b)
    assert found.max_abs == pytest.approx(expected["max_abs"], rel=1e-12)
    assert found.relative == pytest.approx(expected["relative"], rel=1e-12)
    assert found.sqnr == pytest.approx(expected["sqnr"], abs=1e-6)
    assert found.cosine == pytest.approx(expected["cosine"], abs=1e-9)
    assert not found.equal


@pytest.mark.parametrize("dtype", _DTYPES)
def test_each_floating_point_type(dtype):
    rng = np.random.default_rng(1)
    b = rng.standard_normal((3, 7)).astype(np.float32)
    a = b.astype(dtype)
    b = b.astype(np.float64)
    if np.array_equal(a.astype(np.float64), b):
        assert difference(a, b).equal
        return
    expected = _exact(a.astype(np.float64), b)
    assert max_abs(a, b) == pytest.approx(expected["max_abs"])
    assert relative(a, b) == pytest.approx(expected["relative"])
    assert sqnr(a, b) == pytest.approx(expected["sqnr"])
    assert cosine(a, b) == pytest.approx(expected["cosine"])


def test_the_whole_range_of_float64():
    big = np.array([1.7e308, 1.0])
    found = difference(-big, big)
    assert (found.max_abs, found.relative, found.cosine) == (math.inf, 2.0, -1.0)
    assert found.sqnr == pytest.approx(20 * math.log10(0.5))
    tiny = np.array([5e-324, 0.0])
    assert relative(tiny * 2, tiny) == 1.0
    assert sqnr(tiny * 2, tiny) == 0.0


def test_equal_specials_are_equal_and_left_out():
    a = np.array([np.nan, np.inf, -np.inf, 1.0, -0.0], np.float32)
    assert difference(a, a).equal
    b = np.array([np.nan, np.inf, -np.inf, 2.0, 0.0], np.float32)
    found = difference(a, b)
    assert not found.equal
    assert (found.max_abs, found.relative) == (1.0, 0.5)
    assert found.sqnr == pytest.approx(20 * math.log10(2))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.nan, 1.0),
        (1.0, np.nan),
        (np.inf, 1.0),
        (1.0, -np.inf),
        (np.inf, -np.inf),
        (np.nan, np.inf),
    ],
)
def test_a_special_on_one_side_is_the_worst_error(a, b):
    found = difference(np.array([1.0, a]), np.array([1.0, b]))
    assert (found.max_abs, found.relative) == (math.inf, math.inf)
    assert (found.sqnr, found.cosine) == (-math.inf, -1.0)
    for text in ("rel:1e300", "sqnr:-1e300", "cosine:-0.999"):
        assert not Tolerance.parse(text).met(found)


def test_reference_of_zeros():
    zeros = np.zeros(3, np.float32)
    assert difference(zeros, zeros) == difference(-zeros, zeros)
    found = difference(np.array([0, 1e-30, 0], np.float32), zeros)
    assert (found.relative, found.sqnr, found.cosine) == (math.inf, -math.inf, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, object])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_no_elements_are_equal(dtype, shape):
    found = difference(np.zeros(shape, dtype), np.zeros(shape, dtype))
    assert found.equal
    assert found.top1 is None
    assert Tolerance.parse("top1:1").met(found)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, ml_dtypes.int4, ml_dtypes.uint4]
)
def test_integers_are_equal_or_not(dtype):
    b = np.array([0, 1, 7, 3], dtype)
    assert difference(b, b.copy()).equal
    a = np.array([0, 1, 7, 5], dtype)
    found = difference(a, b)
    assert (found.max_abs, found.relative, found.top1) == (2.0, math.inf, 0.75)
    assert not Tolerance.parse("rel:1e6").met(found)


def test_integers_further_apart_than_their_type_reaches():
    limits = np.iinfo(np.int64)
    assert max_abs(np.array([limits.max]), np.array([limits.min])) == float(2**64 - 1)


def test_booleans_and_strings():
    assert difference(np.array([True, False]), np.array([True, True])).top1 == 0.5
    words = np.array(["a", "b"], dtype=object)
    assert difference(words, np.array(["a", "b"])).equal
    found = difference(words, np.array(["a", "c"], dtype=object))
    assert (found.equal, found.max_abs, found.top1) == (False, math.inf, 0.5)


def test_complex_numbers_are_two_numbers():
    b = np.array([3 + 4j, 1 - 1j], np.complex64)
    a = b + np.complex64(0.5j)
    found = difference(a, b)
    assert (found.max_abs, found.relative) == (0.5, 0.125)
    assert found.sqnr == pytest.approx(10 * math.log10(27 / 0.5))
    assert found.top1 is None


def test_top1_of_rows():
    b = np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]], np.float32)
    a = np.array([[0.2, 0.3], [0.1, 0.2], [0.5, 0.5]], np.float32)
    assert top1(a, b) == pytest.approx(2 / 3)
    assert top1(a[:, :1], b[:, :1]) is None
    assert top1(np.float32([1.0])[0:1].reshape(()), np.float32([2.0]).reshape(())) is None


def test_sequences_and_optionals():
    a, b = np.float32([1, 2]), np.float32([1, 4])
    assert difference([a, a], [a, b]).relative == 0.5
    assert difference(None, None).equal
    assert difference([], []).equal


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (np.zeros(2), np.zeros(3), r"shapes \[2\] and \[3\]"),
        (np.zeros(2), np.zeros((2, 1)), r"shapes \[2\] and \[2, 1\]"),
        (np.zeros(2), np.zeros(2, int), "float64 .* int64"),
        ([np.zeros(2)], [], "1 and 0 elements"),
        ([np.zeros(2)], np.zeros(2), "a sequence"),
        (None, np.zeros(2), "NoneType"),
    ],
)
def test_what_cannot_be_compared(a, b, said):
    with pytest.raises(DataError, match=said):
        difference(a, b)


def test_worst_of_samples():
    one = Difference(False, 1.0, 0.1, 20.0, 0.9, agreeing=1, rows=2)
    other = Difference(True, 0.0, 0.2, 30.0, 0.8, agreeing=2, rows=2)
    assert one.worst(other) == Difference(False, 1.0, 0.2, 20.0, 0.8, agreeing=3, rows=4)
    assert one.worst(other).top1 == 0.75
    assert one.worst(Difference()) == one


@pytest.mark.parametrize("text", ["rel:0.01", "sqnr:30.0", "cosine:0.999", "top1:0.99", "rel:0.0"])
def test_tolerance_prints_what_it_parses(text):
    assert str(Tolerance.parse(text)) == text


@given(st.sampled_from(["rel", "sqnr", "cosine", "top1"]), st.floats(0, 1))
def test_tolerance_round_trip(metric, limit):
    tolerance = Tolerance(metric, limit)
    assert Tolerance.parse(str(tolerance)) == tolerance


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1e-2", "METRIC:LIMIT"),
        ("", "METRIC:LIMIT"),
        ("rel", "METRIC:LIMIT"),
        ("real:1", "did you mean 'rel'"),
        ("rel:", "not a number"),
        ("rel:much", "not a number"),
        ("rel:nan", "0 or more"),
        ("rel:-1", "0 or more"),
        ("rel:inf", "0 or more"),
        ("sqnr:nan", "dB"),
        ("cosine:2", "from -1 to 1"),
        ("top1:99", "from 0 to 1"),
    ],
)
def test_tolerance_refuses(text, said):
    with pytest.raises(ValueError, match=said):
        Tolerance.parse(text)


def test_tolerance_limits_are_inclusive_and_reported():
    value = Difference(False, 1.0, 0.01, 30.0, 0.999, agreeing=99, rows=100)
    for text in ("rel:1e-2", "sqnr:30", "cosine:0.999", "top1:0.99"):
        assert Tolerance.parse(text).check({"y": value}) == []
    [problem] = Tolerance.parse("rel:9e-3").check({"y": value})
    assert "'y'" in problem
    assert "0.01" in problem
    assert "0.009" in problem
    assert Tolerance.parse("sqnr:31").check({"y": value})
    assert Tolerance.parse("top1:0.991").check({"y": value})
    assert Tolerance.parse("cosine:0.9991").check({"y": value, "z": Difference()})


def test_top1_asks_equality_where_there_are_no_rows():
    scalar = difference(np.float32(1).reshape(()), np.float32(2).reshape(()))
    assert not Tolerance.parse("top1:0.5").met(scalar)
    assert "no rows" in Tolerance.parse("top1:0.5").check({"y": scalar})[0]
