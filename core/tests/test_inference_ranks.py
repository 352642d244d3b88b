"""Shapes where ONNX's own inference gives up."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from narrowpass.inference import infer


@pytest.mark.parametrize("operator", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 14, 16, 18])
def test_comparisons_of_every_version_have_a_shape(operator, opset):
    text = f"""<ir_version: 7, opset_import: ["": {opset}]>
    g (float[a, 1, 4] x, float[n, 4] y) => (float[p, q, r] z)
    {{ c = {operator}(x, y) z = Cast<to = 1>(c) }}"""
    model = ir.from_proto(parser.parse_model(text))
    infer(model)
    value = model.graph.node(0).outputs[0]
    assert value.dtype == ir.DataType.BOOL
    assert value.shape is not None
    assert len(value.shape) == 3
    assert value.shape[2] == 4
