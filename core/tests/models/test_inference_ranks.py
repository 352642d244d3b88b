"""Shapes where ONNX's own inference stops."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from narrowpass_ir.inference import infer, inferred


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


@pytest.mark.parametrize("axes", ["[2, 0]", "[2, 0, 1]", "[0, 2]"])
def test_axes_of_squeeze_in_any_order(axes):
    text = f"""<ir_version: 4, opset_import: ["": 9]>
    g (float[1, 1, 1, n, 4] x) => (float[...] y) {{ y = Squeeze <axes = {axes}> (x) }}"""
    count = axes.count(",") + 1
    dims = ", ".join(f"d{index}" for index in range(5 - count))
    model = ir.from_proto(parser.parse_model(text.replace("...", dims)))
    infer(model)
    shape = model.graph.outputs[0].shape
    assert shape is not None
    assert [str(dim) for dim in shape] == ["1"] * (3 - count) + ["n", "4"]


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (18, "GroupNormalization <num_groups = 2> (x, s, s)"),
        (20, "GroupNormalization <num_groups = 2> (x, s, s)"),
        (21, "GroupNormalization <num_groups = 2> (x, t, t)"),
        (13, "MeanVarianceNormalization (x)"),
    ],
)
def test_normalizations_are_like_their_input(opset, node):
    text = f"""<ir_version: 7, opset_import: ["": {opset}]>
    g (float[n, 4, 5, 6] x, float[2] s, float[4] t) => (float[p, q, r, u] z)
    {{ c = {node} z = Relu(c) }}"""
    model = ir.from_proto(parser.parse_model(text))
    infer(model)
    value = model.graph.node(0).outputs[0]
    assert value.dtype == ir.DataType.FLOAT
    assert [str(dim) for dim in value.shape or ()] == ["n", "4", "5", "6"]


def test_deprecated_operators_are_not_inferred():
    text = """<ir_version: 7, opset_import: ["": 13]>
    g (float[1, 1, 2, 2] x, float[4] s) => (float[p, q, r, u] y) { y = Upsample(x, s) }"""
    model = ir.from_proto(parser.parse_model(text))
    infer(model)
    assert len(model.graph.outputs[0].shape or ()) == 4


def test_a_value_in_the_place_of_an_output_has_what_the_output_declared():
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x) => (float[n, m] y) { y = Relu(x) }"""
    model = ir.from_proto(parser.parse_model(text))
    (before,) = model.graph.outputs
    with inferred(model):
        assert before.shape == ir.Shape([2, 3])
        after = ir.val("z", dtype=ir.DataType.FLOAT, shape=before.shape)
        model.graph.append(ir.node("Abs", list(model.graph.inputs), outputs=[after]))
        model.graph.outputs[0] = after
    assert after.shape == ir.Shape(["n", "m"])
