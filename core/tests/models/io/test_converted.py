"""What rounding does to a tensor, exactly and at most."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowpass_ir.io import ConvertedTensor, rounding, rounding_at_most

TYPES = [ir.DataType.FLOAT16, ir.DataType.BFLOAT16]


def exact(array, dtype):
    """Return the largest magnitude and the relative error, in float64."""
    wide = array[np.isfinite(array)].astype(np.float64)
    with np.errstate(over="ignore"):
        rounded = wide.astype(np.float32).astype(dtype.numpy()).astype(np.float64)
    power = np.sqrt(np.sum(wide**2))
    largest = float(np.abs(wide).max(initial=0))
    return largest, float(np.sqrt(np.sum((wide - rounded) ** 2)) / power) if power else 0.0


@pytest.mark.parametrize("dtype", TYPES)
@given(
    array=arrays(
        np.float32,
        st.integers(1, 40),
        elements=st.floats(-6e4, 6e4, width=32) | st.sampled_from([np.inf, -np.inf, np.nan, 0.0]),
    ),
    scale=st.sampled_from([1.0, 1e-3, 1e-6, 1e-9, 1e-30]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_bound_is_never_below_the_error(dtype, array, scale):
    array = array * np.float32(scale)
    largest, error = exact(array, dtype)
    tensor = ir.Tensor(array)
    found, most = rounding(tensor, dtype), rounding_at_most(tensor, dtype)
    assert found.largest == most.largest == pytest.approx(largest)
    assert most.error >= error * (1 - 1e-6)
    if largest > 1e-15:  # squares of smaller ones are lost in float32
        assert found.error == pytest.approx(error, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_bound_is_near_the_error_for_weights(dtype):
    array = np.random.default_rng(0).standard_normal(1_200_000).astype(np.float32) * np.float32(
        0.02
    )
    share = float(ml_dtypes.finfo(dtype.numpy()).eps) / 2
    assert rounding_at_most(ir.Tensor(array), dtype).error == pytest.approx(share, rel=1e-3)
    assert rounding(ir.Tensor(array), dtype).error < share


def test_halves_are_those_of_numpy():
    """All float16 numbers, what lies between and beside them, and any bits."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    between = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint32)
    edges = [65504, 65519.99, 65520, 65536, 2.0**-14, 2.0**-24, 2.0**-25, 0.0, -0.0, np.inf, np.nan]
    parts = [halves.astype(np.float32), between, *near, bits.view(np.float32), edges]
    array = np.concatenate([np.asarray(part, np.float32) for part in parts])
    with np.errstate(over="ignore", invalid="ignore"):
        right = array.astype(np.float16)
    got = ConvertedTensor(ir.Tensor(array), ir.DataType.FLOAT16).numpy()
    np.testing.assert_array_equal(got.view(np.uint16), right.view(np.uint16))


@pytest.mark.parametrize("shape", [(0,), (), (3, 0, 2), (5, 7), (2, 70_000)])
def test_halves_of_any_shape(shape):
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    got = ConvertedTensor(ir.Tensor(array), ir.DataType.FLOAT16).numpy()
    np.testing.assert_array_equal(got, np.asarray(array.astype(np.float16)))
