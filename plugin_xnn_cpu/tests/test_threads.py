"""Steps that are worth dividing, and those that the thread of the run computes alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import compile_model

pytestmark = pytest.mark.once

RNG = np.random.default_rng(3)


def chain() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 64] x) => (float[n, 64] y) <int64[1] last = {-1}> {
            a = Abs(x)
            b = Add(a, x)
            s = Softmax <axis = -1> (b)
            m = ReduceMax(s, last)
            y = Mul(s, m)
        }
    """)


def test_rows_that_grow_and_shrink():
    """From steps of 1 KiB, which nobody is woken for, to 4 MiB and back, in one program."""
    model = chain()
    session = onnx.reference.ReferenceEvaluator(model)
    with compile_model(model, threads=2) as program, compile_model(model, threads=1) as single:
        for rows in (4, 100, 20_000, 84, 85, 86, 4):
            x = RNG.standard_normal((rows, 64)).astype(np.float32)
            (got,) = program.run({"x": x}).values()
            (alone,) = single.run({"x": x}).values()
            np.testing.assert_array_equal(got, alone)
            if rows <= 100:
                (expected,) = session.run(None, {"x": x})
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
