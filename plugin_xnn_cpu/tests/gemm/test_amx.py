"""Tiles of AMX beside VNNI and AVX512-BF16: the same bits of integers, and bfloat16 by numpy.

Edges: fewer rows, columns and K than a tile has, as many, and one more. The tests of the int8 and
bfloat16 kernels run with tiles too, where the processor has them.
"""

from __future__ import annotations

import os
import threading

import ml_dtypes
import numpy as np
import pytest
from bf16_kit import UNIT, bfloat16
from few_bits_kit import bound, expected, nbits, rows_of
from int8_kernels_kit import run as run_operator
from int8_kernels_kit import run_rows
from xnn_kit import compile_model

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own import bf16, int8_convolution, int8_matmul
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.runtime.pool import shared

LIB = extension().lib
pytestmark = pytest.mark.skipif(
    LIB.np_isa() < LIB.NP_TARGET_AVX512AMX, reason="no AMX in use on this processor"
)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 49, 100)
OUTPUTS = (1, 15, 16, 17, 31, 32, 33, 48, 65, 130)
INPUTS = (1, 4, 5, 60, 64, 65, 68, 96, 100, 128, 384)


def integers_of(rng, *shape):
    return rng.integers(-127, 128, shape).astype(np.int8)


def by_both(monkeypatch, create_and_run):
    """Return what a kernel computes by VNNI, and by tiles."""
    results = []
    for level in ("avx512vnni", "avx512amx"):
        monkeypatch.setattr(kernels, "TARGET", level)
        results.append(create_and_run())
    return results


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("inputs", INPUTS)
def test_int8_rows_have_the_same_bits_as_by_vnni(inputs, threads, monkeypatch):
    rng = np.random.default_rng(inputs)
    for outputs in OUTPUTS:
        matrix = integers_of(rng, outputs, inputs)
        scales = rng.uniform(0.001, 0.1, outputs).astype(np.float32)
        stored = Quantized(Weight.of(matrix), Weight.of(scales), None, 0)
        bias = rng.standard_normal(outputs).astype(np.float32)
        for rows in ROWS:
            x = rng.standard_normal((rows, inputs)).astype(np.float32)

            def multiply(stored=stored, bias=bias, x=x, outputs=outputs):
                problem = Matmul(stored, Weight.of(bias), operand=PerToken())
                operator = int8_matmul.PER_TOKEN.create(problem)
                operator.reshape(len(x), shared(threads))
                return run_rows(operator, x, (len(x), outputs), threads)

            without, tiles = by_both(monkeypatch, multiply)
            np.testing.assert_array_equal(tiles, without)
            right = x.astype(float) @ (matrix * scales[:, None].astype(float)).T + bias
            # A row is off by half a step of its 255 in each element.
            step = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)) / 255
            weights = np.abs(matrix * scales[:, None].astype(float)).sum(1)
            assert (np.abs(tiles - right) <= 0.501 * np.outer(step, weights) + 1e-4).all()


@pytest.mark.parametrize("extent", [1, 3])
@pytest.mark.parametrize("width", [1, 7, 14, 17, 33])
def test_int8_convolutions_have_the_same_bits_as_by_vnni(width, extent, monkeypatch):
    """Lines of less than a tile and of more; a 3 x 3 kernel window has three runs."""
    rng = np.random.default_rng(width)
    for channels, outputs, strides in ((16, 33, (1, 1)), (20, 64, (2, 2)), (3, 40, (1, 2))):
        kernel = integers_of(rng, outputs, extent, extent, channels)
        scales = rng.uniform(0.001, 0.004, outputs).astype(np.float32)
        stored = Quantized(Weight.of(kernel), Weight.of(scales), None, 0)
        bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
        x = integers_of(rng, 2, 9, width, channels)
        attributes = ConvAttributes((extent // 2,) * 4, strides)

        def convolve(stored=stored, bias=bias, x=x, attributes=attributes, outputs=outputs):
            requantized = Requantized(Quantization(0.02, 5), Quantization(0.1, -3))
            operator = int8_convolution.CONVOLUTION.create(
                Convolution(stored, Weight.of(bias), attributes, requantized)
            )
            height, out_width = operator.reshape(x.shape, shared(1))
            return run_operator(operator, x, (2, height, out_width, outputs), np.int8, 1)

        without, tiles = by_both(monkeypatch, convolve)
        np.testing.assert_array_equal(tiles, without)
        assert len(np.unique(tiles)) > 20


BF16_ROWS = 32
"""From so many on, rows times up to 4 bits are bfloat16 in tiles, not int8."""


@pytest.mark.parametrize("zeros", [None, "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_few_bits_have_the_same_bits_as_by_vnni(bits, zeros, monkeypatch):
    """Many rows of bfloat16 keep the bound of int8: half a step of the largest of a block."""
    shapes = ((16, 48, 31), (32, 320, 33), (64, 64, 64), (128, 300, 70), (32, 1100, 40))
    for block, columns, outputs in shapes:
        model, matrix, added = nbits(bits, block, zeros, columns, outputs, bias=True, level=4)
        given = [rows_of(rows, columns) for rows in ROWS]

        def multiply(model=model, given=given):
            with compile_model(model, threads=2) as program:
                return [program.run({"x": x})["y"] for x in given]

        without, tiles = by_both(monkeypatch, multiply)
        for x, before, now in zip(given, without, tiles, strict=True):
            if bits == 8 or len(x) < BF16_ROWS:
                np.testing.assert_array_equal(now, before)
            else:
                assert (now != before).any()
            right, _ = expected(x, matrix, added)
            assert (np.abs(now - right) <= bound(x, matrix, block)).all()


def test_many_rows_that_are_not_finite(monkeypatch):
    """A row with infinity or NaN is NaN, as by int8; the largest floats are no infinity."""
    model, matrix, added = nbits(4, 32, None, 96, 40, bias=True, level=4)
    x = rows_of(BF16_ROWS, 96)
    x[3, 5], x[7, 90], x[9, 1] = np.inf, np.nan, np.finfo(np.float32).max
    monkeypatch.setattr(kernels, "TARGET", "avx512amx")
    with compile_model(model) as program:
        found = program.run({"x": x})["y"]
    assert np.isnan(found[[3, 7]]).all()
    others = np.delete(np.arange(BF16_ROWS), [3, 7])
    assert np.isfinite(found[others]).all()
    right, _ = expected(x[others], matrix, added)
    assert (np.abs(found[others] - right) <= _bounds(x[others], matrix)).all()


def _bounds(x, matrix):
    """The bound of each row by itself."""
    return np.concatenate([bound(row[None], matrix, 32) for row in x])


@pytest.mark.parametrize("inputs", [2, 31, 32, 34, 64, 66, 96, 128, 768])
def test_bfloat16_is_accumulated_in_float32(inputs, monkeypatch):
    """The bound of any order of additions of terms that float32 has exactly."""
    monkeypatch.setattr(kernels, "TARGET", "avx512amx")
    rng = np.random.default_rng(inputs)
    for outputs in OUTPUTS:
        matrix = rng.standard_normal((outputs, inputs)).astype(ml_dtypes.bfloat16)
        bias = rng.standard_normal(outputs).astype(np.float32)
        limits = (0.0, 3.0) if outputs == 33 else UNBOUNDED
        operator = bf16.MATMUL.create(
            Matmul(Weight.of(matrix), Weight.of(bias), Epilogue(limits=limits))
        )
        for rows in ROWS:
            x = rng.standard_normal((rows, inputs)).astype(np.float32)
            operator.reshape(rows, shared(1))
            got = run_operator(operator, x, (rows, outputs), np.float32, 1)
            wide, weights = bfloat16(x).astype(float), matrix.astype(float)
            right = np.clip(wide @ weights.T + bias, *limits)
            most = np.abs(wide) @ np.abs(weights.T) + np.abs(bias)
            assert (np.abs(got - right) <= (inputs + 2) * UNIT * most).all()


def test_rows_of_bfloat16_do_not_touch_each_other(monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", "avx512amx")
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((40, 64)).astype(ml_dtypes.bfloat16)
    operator = bf16.MATMUL.create(Matmul(Weight.of(matrix), None, Epilogue()))
    x = rng.standard_normal((37, 64)).astype(np.float32)
    operator.reshape(37, shared(1))
    finite = run_operator(operator, x, (37, 40), np.float32, 1)
    x[20, 3] = np.nan
    x[36, 5] = np.inf
    got = run_operator(operator, x, (37, 40), np.float32, 1)
    kept = np.delete(np.arange(37), [20, 36])
    np.testing.assert_array_equal(got[kept], finite[kept])
    assert np.isnan(got[20]).all()
    assert not np.isfinite(got[36]).any()


def matmul_by_tiles():
    rng = np.random.default_rng(7)
    matrix = integers_of(rng, 70, 128)
    stored = Quantized(Weight.of(matrix), Weight.of(np.full(70, 0.01, np.float32)), None, 0)
    operator = int8_matmul.PER_TOKEN.create(Matmul(stored, None, operand=PerToken()))
    x = rng.standard_normal((40, 128)).astype(np.float32)
    operator.reshape(40, shared(1))
    return run_rows(operator, x, (40, 70), 1)


def test_children_of_a_fork_and_threads_use_tiles(monkeypatch):
    """The permission is the process's and is inherited; shapes of tiles are each thread's own."""
    monkeypatch.setattr(kernels, "TARGET", "avx512amx")
    expected_result = matmul_by_tiles()
    results = []
    started = [threading.Thread(target=lambda: results.append(matmul_by_tiles())) for _ in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(result, expected_result)
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = np.array_equal(matmul_by_tiles(), expected_result)
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
