"""The operator of matmuls with constant int8 matrices, alone."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import numpy as np
import pytest
from int8_matmul_kit import PER_CHANNEL, RNG, quantized, rows, run, with_one

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul
from narrowpass_xnn_cpu.native.xnnpack.matmul import has_unsigned_rows


@pytest.mark.parametrize("inputs", [1, 7, 13, 31, 64])
def test_nothing_is_read_beyond_the_constants(inputs):
    """Matrix and bias end where memory that can be read ends."""
    outputs, page = 19, mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    x, held = rows(3, inputs), []

    def at_the_end(array: np.ndarray) -> np.ndarray:
        area = mmap.mmap(-1, 4 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        assert libc.mprotect(ctypes.c_void_p(start + 3 * page), page, 0) == 0
        held.append((area, start))
        place = np.frombuffer(area, array.dtype, array.size, 3 * page - array.nbytes)
        place[...] = array.reshape(-1)
        return place.reshape(array.shape)

    for transposed, rows_too in itertools.product((False, True), repeat=2):
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        matrix = at_the_end(RNG.integers(-127, 128, shape).astype(np.int8))
        scale = at_the_end(PER_CHANNEL)
        operator = xnn_matmul.create(
            Matmul(
                quantized(matrix, scale, axis=int(transposed)),
                Weight.of(at_the_end(np.ones(outputs, np.float32))),
                transposed=transposed,
                operand=PerToken() if rows_too else None,
            )
        )
        wide = matrix.astype(np.float64) * (scale if transposed else scale[:, None])
        exact = x @ (wide if transposed else wide.T) + 1
        tolerance = (2e-2 if rows_too else 1e-5) * np.abs(exact).max()
        np.testing.assert_allclose(run(operator, x, outputs), exact, rtol=1e-5, atol=tolerance)
    for _, start in held:
        libc.mprotect(ctypes.c_void_p(start + 3 * page), page, 3)


@pytest.mark.xnnpack
@pytest.mark.parametrize("unsigned", [False, True])
def test_rows_of_either_sign(unsigned):
    """Which a program takes depends on the processor; blocks of one are not taken for the other."""
    if unsigned and not has_unsigned_rows():
        pytest.skip("this processor has no instructions for unsigned rows")
    matrix, bias = with_one(-127, (19, 37)), Weight.of(np.ones(19, np.float32), "b")
    x = rows(23) - 1
    x[4, 4] = np.inf
    wide = matrix.astype(np.float64) * PER_CHANNEL[:, None]
    with np.errstate(invalid="ignore"):  # infinity times a weight that is 0
        exact = x @ wide.T + 1
    steps = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)) / 255
    limit = np.outer(steps / 2, np.abs(wide).sum(1)) + 1e-5
    with WeightsCache().begin() as session:
        stored = quantized(matrix, PER_CHANNEL, name="a")
        operator, other = (
            xnn_matmul.create(Matmul(stored, bias, operand=PerToken(sign)), session)
            for sign in (unsigned, False)
        )
    assert session.counts.packs == 1 + unsigned
    del other
    got = run(operator, x, 19)
    assert np.isnan(got[4]).all()
    known = np.arange(23) != 4
    assert (np.abs(got - exact) <= 1.001 * limit)[known].all()
    single = run(operator, x[:1], 19)
    np.testing.assert_array_equal(single, got[:1])


def test_inputs_that_the_operator_refuses():
    matrix = np.ones((4, 3), np.int8)
    with pytest.raises(UnfitError, match="2 scales or zero points for 4 outputs"):
        xnn_matmul.create(Matmul(quantized(matrix, [1, 1]), None))
    odd = Quantized(Weight.of(matrix), Weight.of(np.ones(4, np.float16)), None, 0)
    with pytest.raises(UnfitError, match="scales are float16"):
        xnn_matmul.create(Matmul(odd, None))
    with pytest.raises(Exception, match=r"a bias must be float32\[4\]"):
        xnn_matmul.create(Matmul(quantized(matrix, 1), Weight.of(np.ones(3, np.float32))))
    with pytest.raises(Exception, match="a kernel must be int8"):
        xnn_matmul.create(Matmul(quantized(matrix.astype(np.uint8), 1), None))
