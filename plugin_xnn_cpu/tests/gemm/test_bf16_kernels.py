"""Matmuls and convolutions with bfloat16 weights by the plugin's own kernels, against float64.

Inputs are rounded to bfloat16, which changes each term by `EPSILON` of itself at most. All later
rounding is to float32: the oracle rounds inputs itself, and what remains is a dot product of n
terms, each addition off by `UNIT` of its result.
"""

from __future__ import annotations

import fp32_kit
import ml_dtypes
import numpy as np
import pytest
from bf16_kit import EPSILON, UNIT, bfloat16, executing
from fp32_kit import (
    CONVOLUTIONS,
    REFUSED,
    apply_epilogue,
    convolve,
    convolve_magnitudes,
    valid_image_size,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.own import bf16
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import FUNCTIONS, RESIDUALS, Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import shared

pytestmark = pytest.mark.usefixtures("bf16_code")

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def run(*arguments, **options):
    """Run an operator on the code that was asked for; see `fp32_kit.run`."""
    with executing():
        return fp32_kit.run(*arguments, **options)


def compare(got, x, kernel, bias, attributes, limits=UNBOUNDED):
    """Assert what rounding explains, and no more."""
    rounded = convolve(bfloat16(x), kernel, bias, attributes)
    magnitudes = convolve_magnitudes(bfloat16(x), kernel, bias, attributes)
    count = np.prod(kernel.shape[1:]) + 1
    clipped = np.clip(rounded, *limits)
    np.testing.assert_array_less(abs(got - clipped), count * UNIT * magnitudes + 1e-30)
    # The sum of what was given: inputs are off by a half of bfloat16's last place, or by less.
    exact = convolve(x, kernel, bias, attributes)
    allowed = (EPSILON + count * UNIT) * convolve_magnitudes(x, kernel, bias, attributes) + 1e-30
    np.testing.assert_array_less(abs(got - np.clip(exact, *limits)), allowed)


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def weight_of(array):
    return None if array is None else Weight.of(array)


@QUICK
@given(
    **CONVOLUTIONS,
    outputs=st.sampled_from([1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 49]),
    limits=st.sampled_from([UNBOUNDED, UNBOUNDED, (0.0, np.inf), (0.0, 6.0), (-0.1, 0.3)]),
)
def test_convolutions(
    seed, batch, size, kernel_shape, strides, dilations, pads, inputs, outputs, groups, limits,
    has_bias, threads,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    attributes = ConvAttributes(pads, strides, dilations, groups)
    size = valid_image_size(size, kernel_shape, attributes)
    x = numbers(rng, batch, *size, inputs * groups)
    kernel = numbers(rng, outputs * groups, *kernel_shape, inputs).astype(ml_dtypes.bfloat16)
    bias = numbers(rng, outputs * groups) if has_bias else None
    problem = Convolution(Weight.of(kernel), weight_of(bias), attributes, Epilogue(limits=limits))
    operator = bf16.CONVOLUTION.create(problem)
    height, width = operator.reshape(x.shape, shared(threads))
    got = run(operator, x, (batch, height, width, outputs * groups), threads)
    compare(got, x, kernel, bias, attributes, limits)


@QUICK
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 30),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    limits=st.sampled_from([UNBOUNDED, (0.0, np.inf), (-0.1, 0.3)]),
    has_bias=st.booleans(),
    transposed=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_matmul(seed, rows, inputs, outputs, limits, has_bias, transposed, threads):
    rng = np.random.default_rng(seed)
    x = numbers(rng, rows, inputs)
    kernel = numbers(rng, outputs, inputs).astype(ml_dtypes.bfloat16)
    bias = numbers(rng, outputs) if has_bias else None
    given = np.ascontiguousarray(kernel.T) if transposed else kernel
    operator = bf16.MATMUL.create(
        Matmul(Weight.of(given), weight_of(bias), Epilogue(limits=limits), transposed)
    )
    operator.reshape(rows, shared(threads))
    got = run(operator, x, (rows, outputs), threads)
    image, pointwise = x[None, :, None], kernel[:, None, None]
    compare(got[None, :, None], image, pointwise, bias, ConvAttributes(), limits)


@pytest.mark.parametrize("near", [0, 1 << 30])
@pytest.mark.parametrize("threads", [1, 2])
def test_row_tiles_chunks_and_parts(threads, near, monkeypatch):
    """Small tiles, so that there are many."""
    monkeypatch.setattr(bf16, "_NEAR_BYTES", near)
    monkeypatch.setattr(bf16, "_ROW_TILE_BYTES", 1 << 12)
    rng = np.random.default_rng(3)
    kernel = numbers(rng, 40, 3, 3, 6).astype(ml_dtypes.bfloat16)
    x = numbers(rng, 2, 9, 30, 6)
    operator = bf16.CONVOLUTION.create(
        Convolution(Weight.of(kernel), None, ConvAttributes((1, 1, 1, 1)))
    )
    operator.reshape(x.shape, shared(threads))
    params, geometry = operator.params, operator.params.geometry
    assert geometry.row_tiles > 1
    assert (params.chunk < geometry.row_tile * 30) is (near > 0)
    assert geometry.image.batch * geometry.row_tiles * geometry.parts > threads
    compare(
        run(operator, x, (2, 9, 30, 40), threads), x, kernel, None, ConvAttributes((1, 1, 1, 1))
    )


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_epilogues(function, residual):
    """A fused epilogue equals the epilogue applied to the accumulators, in float64."""
    rng = np.random.default_rng(5)
    x, other = numbers(rng, 1, 9, 7, 10), numbers(rng, 1, 9, 7, 45)
    kernel = (numbers(rng, 45, 1, 1, 10) / 3).astype(ml_dtypes.bfloat16)
    limits = (-0.5, 1.5) if function == "clamp" else UNBOUNDED
    epilogue = Epilogue(function, limits, residual)
    operator = bf16.CONVOLUTION.create(
        Convolution(Weight.of(kernel), None, ConvAttributes(), epilogue)
    )
    operator.reshape(x.shape, shared(1))
    added = other if residual else None
    got = run(operator, x, other.shape, 1, added)
    if residual == "before":
        # The result may lie where the residual did.
        inside = run(operator, x, other.shape, 1, added, in_place=True)
        np.testing.assert_array_equal(inside, got)
    accumulators = convolve(bfloat16(x), kernel, None, ConvAttributes())
    magnitudes = convolve_magnitudes(bfloat16(x), kernel, None, ConvAttributes())
    # The functions' slopes are at most 1.2, their own errors a few units of what goes in.
    limit = 30 * UNIT * (magnitudes + 2 * abs(other) + abs(accumulators))
    np.testing.assert_array_less(abs(got - apply_epilogue(accumulators, epilogue, other)), limit)


@pytest.mark.parametrize("limits", [UNBOUNDED, (0.0, 6.0)])
@pytest.mark.parametrize("width", [4, 5])
def test_nonfinite_inputs_reach_their_output_pixels_only(limits, width):
    """NaN is not clamped; infinities are; each reaches its own output pixels only."""
    x = np.ones((1, 9, 9, width), np.float32)
    x[0, 1, 1, 2], x[0, 1, 7, 3], x[0, 7, 1, 0] = np.nan, np.inf, -np.inf
    kernel = np.full((40, 3, 3, width), 0.125, ml_dtypes.bfloat16)
    attributes = ConvAttributes((1, 1, 1, 1))
    problem = Convolution(Weight.of(kernel), None, attributes, Epilogue(limits=limits))
    operator = bf16.CONVOLUTION.create(problem)
    operator.reshape(x.shape, shared(1))
    got = run(operator, x, (1, 9, 9, 40), 1)
    expected = np.clip(convolve(x, kernel, None, attributes), *limits)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got).sum() == 9 * 40


def test_rounding_of_inputs():
    """All numbers there are between two of bfloat16, in both halves of a pair, and odd ones."""
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, 4096, np.uint64).astype(np.uint32)
    middles = (bits[:1024] & 0xFFFF0000) | 0x8000
    x = np.concatenate([bits, middles, middles + 1, middles - 1]).view(np.float32)
    x = np.concatenate([x, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-40, 7])])
    for width in (1, 2, 41):
        rows = x[: len(x) // width * width].reshape(-1, width)
        operator = bf16.MATMUL.create(
            Matmul(Weight.of(np.eye(width, dtype=ml_dtypes.bfloat16)), None, Epilogue())
        )
        operator.reshape(len(rows), shared(1))
        got = run(operator, rows, rows.shape, 1)
        finite = np.isfinite(bfloat16(rows)).all(1)
        assert finite.any()
        np.testing.assert_array_equal(got[finite], bfloat16(rows)[finite])
        assert np.isnan(got[np.isnan(rows).any(1)]).all()


def test_all_instruction_sets_return_the_same_bits(bf16_code, monkeypatch):
    """Multiplying two bfloat16 numbers is exact in float32: fused multiply-add rounds alike."""
    rng = np.random.default_rng(4)
    x = numbers(rng, 1, 11, 10, 19) * np.float32(2.0) ** rng.integers(-60, 60, (1, 11, 10, 19))
    kernel = numbers(rng, 50, 3, 2, 19).astype(ml_dtypes.bfloat16)
    bias = numbers(rng, 50)
    attributes = ConvAttributes((1, 0, 1, 1), (2, 1), (1, 2))
    results = []
    for target in (bf16_code, "plain"):
        monkeypatch.setattr(kernels, "TARGET", target)
        operator = bf16.CONVOLUTION.create(
            Convolution(Weight.of(kernel), Weight.of(bias), attributes)
        )
        height, width = operator.reshape(x.shape, shared(1))
        results.append(run(operator, x, (1, height, width, 50), 1))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("attributes", "shape", "message"), REFUSED)
def test_invalid_convolutions_are_refused(attributes, shape, message):
    kernel = Weight.of(np.ones((16, 3, 3, 4), ml_dtypes.bfloat16))
    with pytest.raises(BackendError, match=message):
        bf16.CONVOLUTION.create(Convolution(kernel, None, attributes)).reshape(shape, shared(1))
