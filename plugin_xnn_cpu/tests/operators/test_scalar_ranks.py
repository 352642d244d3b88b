"""Numbers of shape [1] with scalars: the result has their rank, whatever computes it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import check

GRAPH = '<ir_version: 8, opset_import: ["": 18]> g (float x) => (float[1] y) '
BODIES = {
    **{
        f"power {number}": f"<float[1] c = {{{number}}}> {{ y = Pow(x, c) }}"
        for number in (0.5, 1, 2, 3, -0.5)
    },
    "greater": "<float[1] c = {0}> { y = Max(x, c) }",
    "gelu": "<float[1] r = {1.4142135}, float[1] o = {1}, float[1] h = {0.5}>"
    "{ a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h) }",
    "gelu whose last number has a dimension": "<float r = {1.4142135}, float o = {1}, "
    "float[1] h = {0.5}> { a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h) }",
    "silu with a slope": "<float[1] s = {1.7}> { a = Mul(x, s) b = Sigmoid(a) y = Mul(b, x) }",
    "hard swish": "<float s = {3}, float z = {0}, float w = {6}, float[1] v = {6}>"
    "{ a = Add(x, s) b = Clip(a, z, w) c = Mul(b, x) y = Div(c, v) }",
    "root": "<float[1] c = {1}> { a = Sqrt(x) y = Div(c, a) }",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_number_of_shape_1_and_a_scalar(body):
    model = onnx.parser.parse_model(GRAPH + body)
    check(model, {"x": np.array(0.7, np.float32)}, native=None)
