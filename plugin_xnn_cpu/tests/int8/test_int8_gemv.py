"""Int8 GEMV: one quantized row, the matrix read in several streams."""

from __future__ import annotations

import numpy as np
import pytest
from int8_matmul_kit import quantized_matmul, rows
from onnx import numpy_helper
from xnn_kit import compile_model

from narrowpass_xnn_cpu.native import kernels

OUTPUTS = [1, 16, 17, 33, 48, 384, 400, 545, 897]
"""Fewer panels of 32 than streams, as many, some left for fewer streams; narrow last ones."""


def matrix_of(model) -> np.ndarray:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return found["w"] * found["s"].astype(np.float64), found["b"].astype(np.float64)


@pytest.mark.parametrize("target", ["best", "avx2", "plain"])
@pytest.mark.parametrize("inputs", [1, 37, 256])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_one_row(outputs, inputs, target, monkeypatch):
    """A row is off by half a step in each element at most; integer accumulators are exact.

    So the kernels for one row and for several return the same bits; instruction sets differ in
    whether the last multiply-add is fused.
    """
    monkeypatch.setattr(kernels, "TARGET", target)
    model = quantized_matmul(inputs, outputs, bias=True, dynamic=True, seed=outputs)
    matrix, bias = matrix_of(model)
    x = rows(2, inputs)
    exact = x.astype(np.float64) @ matrix + bias
    steps = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)) / 255
    allowed = 0.501 * np.outer(steps, np.abs(matrix).sum(0)) + 1e-5 * (1 + np.abs(exact))
    for threads in (1, 3):
        with compile_model(model, threads=threads) as program:
            one = program.run({"x": x[:1]})["y"]
            both = program.run({"x": x})["y"]
        np.testing.assert_array_equal(one, both[:1])
        assert (np.abs(both - exact) <= allowed).all()


@pytest.mark.parametrize("after", ["Relu", "Clip"])
def test_one_row_that_is_not_finite_is_nan_even_where_it_is_clamped(after):
    model = quantized_matmul(40, 450, bias=True, after=after, dynamic=True)
    with compile_model(model) as program:
        for odd in (np.nan, np.inf):
            x = rows(1, 40)
            x[0, 39] = odd
            assert np.isnan(program.run({"x": x})["y"]).all()
        limits = (0, np.inf) if after == "Relu" else (-0.5, 0.75)
        found = program.run({"x": rows(1, 40)})["y"]
    assert found.min() >= limits[0]
    assert found.max() <= limits[1]
    assert np.ptp(found) > 0
