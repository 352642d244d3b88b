"""Matrices of few bits times rows that are quantized to int8 in blocks.

An element is off by half a step at most: see `few_bits_kit.bound`.
"""

from __future__ import annotations

import numpy as np
import pytest
from few_bits_kit import bound, expected, nbits, rows_of
from xnn_kit import compile_model

from narrowpass_xnn_cpu.native import kernels


@pytest.mark.parametrize("target", ["best", "avx512vnni", "avx512", "avx2", "plain"])
@pytest.mark.parametrize("zeros", [None, "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rows_in_blocks_of_int8(bits, zeros, target):
    """With an accuracy level of 4; the same numbers, whatever the instruction set."""
    for block, columns, outputs in ((16, 16, 1), (32, 80, 33), (128, 300, 70)):
        model, matrix, added = nbits(bits, block, zeros, columns, outputs, bias=True, level=4)
        before = kernels.TARGET
        kernels.TARGET = target
        try:
            with compile_model(model, threads=2) as program:
                (plan,) = [p for p in program.explain() if p.op_type == "MatMul"]
                assert "rows in blocks of int8" in plan.kernel
                for rows in range(1, 10):
                    x = rows_of(rows, columns)
                    (got,) = program.run({"x": x}).values()
                    right, _ = expected(x, matrix, added)
                    assert (np.abs(got - right) <= bound(x, matrix, block)).all()
        finally:
            kernels.TARGET = before


@pytest.mark.parametrize("target", ["best", "avx512vnni", "avx512", "avx2", "plain"])
@pytest.mark.parametrize("zeros", [None, "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_row_does_not_depend_on_how_many_there_are(bits, zeros, target, monkeypatch):
    """The same bits alone and among others, up to 31 rows: GEMV, dot products, tiles."""
    monkeypatch.setattr(kernels, "TARGET", target)
    model, _, _ = nbits(bits, 32, zeros, 320, 70, bias=True, level=4)
    x = rows_of(31, 320)
    with compile_model(model) as program:
        alone = np.concatenate([program.run({"x": x[i : i + 1]})["y"] for i in range(31)])
        for rows in (*range(2, 13), 15, 16, 17, 24, 31):
            np.testing.assert_array_equal(program.run({"x": x[:rows]})["y"], alone[:rows])


@pytest.mark.parametrize("rows", [1, 7])
def test_a_block_that_is_not_finite(rows):
    """Its row is NaN, and others are not touched."""
    model, matrix, added = nbits(level=4)
    x = rows_of(rows + 1, 96)
    right, most = expected(x[1:], matrix, added)
    with compile_model(model) as program:
        for number in (np.nan, np.inf, -np.inf):
            x[0, 40] = number
            (got,) = program.run({"x": x}).values()
            assert np.isnan(got[0]).all()
            assert np.abs(got[1:] - right).max() <= 0.02 * most
        x[:, :] = 0
        assert not program.run({"x": x})["y"].any()


def test_threads_and_targets_do_not_change_blocks():
    """The same bits with one thread and with two, from one row to many."""
    for level in (0, 4):
        model, _, _ = nbits(block=32, columns=256, outputs=2000, zeros="packed", level=level)
        with compile_model(model, threads=1) as one, compile_model(model, threads=2) as two:
            for rows in (1, 4, 5, 250):
                x = rows_of(rows, 256)
                assert np.array_equal(one.run({"x": x})["y"], two.run({"x": x})["y"])
