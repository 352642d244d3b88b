"""Results that take the place of an operand: only where nobody reads it any more."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import compile_model


@pytest.mark.parametrize(
    "body",
    [
        "c = Add(a, b) y = Exp(c)",
        "c = Sub(b, a) y = Neg(c)",
        "c = Add(a, b) d = LayerNormalization(c, w) y = Exp(d)",
        "c = Add(b, a) d = LayerNormalization(c, w) y = Exp(d)",
    ],
)
@pytest.mark.parametrize("row", [0, 2])
def test_a_tensor_and_a_row_of_it(body, row):
    """The row is a view of the tensor, and is read for every row of the result."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 64] x) => (float[4, 64] y)
        <int64[1] s = {{{row}}}, int64[1] e = {{{row + 1}}}, int64[1] axis = {{0}}> {{
            a = Exp(x) b = Slice(a, s, e, axis) {body}
        }}
    """)
    rng = np.random.default_rng(row)
    w = rng.standard_normal(64).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = rng.standard_normal((4, 64)).astype(np.float32) / 4
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    with compile_model(model) as program:
        np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
