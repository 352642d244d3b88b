"""Operators that accumulate, of float16 and bfloat16: against numpy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from runtime_kit import evaluate, floats

ROWS, TERMS = 3, 2000
OPERATORS = {
    "ReduceL1": lambda x: np.abs(x).sum(axis=1, keepdims=True),
    "ReduceL2": lambda x: np.sqrt(np.square(x).sum(axis=1, keepdims=True)),
    "ReduceMean": lambda x: x.mean(axis=1, keepdims=True),
    "ReduceSum": lambda x: x.sum(axis=1, keepdims=True),
    "ReduceSumSquare": lambda x: np.square(x).sum(axis=1, keepdims=True),
    "CumSum": lambda x: x.cumsum(axis=1),
    "CumProd": lambda x: x.cumprod(axis=1),
    "ReduceProd": lambda x: x.prod(axis=1, keepdims=True),
    "GlobalAveragePool": lambda x: x.mean(axis=2, keepdims=True),
    "InstanceNormalization": lambda x: (x - x.mean(2, keepdims=True)) / x.std(2, keepdims=True) + 1,
}


def close(got, expected, dtype):
    """One rounding of the result, and of what it is computed from."""
    unit = float(ml_dtypes.finfo(dtype).eps)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=unit, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("opset", [12, 20, 26])
@pytest.mark.parametrize("kind", OPERATORS)
def test_accumulators_are_float32(kind, opset, dtype):
    opset = 26 if kind == "CumProd" else opset
    x = (np.abs(floats(ROWS, TERMS)) / 4).astype(dtype)
    attributes = {}
    given = [x]
    if "Prod" in kind:
        given = [(1 + x.astype(np.float32) / 50).astype(dtype)]
    if kind.startswith("Reduce"):
        as_input = opset >= (13 if kind == "ReduceSum" else 18)
        if as_input:
            given.append(np.int64([1]))
        else:
            attributes["axes"] = [1]
    elif kind.startswith("Cum"):
        given.append(np.array(1))
    else:
        given = [x[None]]
    if kind == "InstanceNormalization":
        given += [np.ones(ROWS, dtype)] * 2
        attributes["epsilon"] = 0.0
    (got,) = evaluate(kind, given, opset=opset, **attributes)
    close(got, OPERATORS[kind](given[0].astype(np.float64)), dtype)
