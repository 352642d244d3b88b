"""Files whose declarations of inner values are wrong: right results, or an error that says so."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import narrowpass
from narrowpass.errors import BackendError

X = np.array([[0.5, -1, 2], [3, -4, 5]], np.float32)

BODIES = [
    "y = Shape(a)",
    "b = Transpose(a) y = Transpose(b)",
    "y = Softmax(a)",
    "s = Shape(a) f = Flatten(a) y = Reshape(f, s)",
    "b = Neg(a) y = Add(a, b)",
    "y = Concat <axis = 0> (a, a)",
    "y = MatMul(a, w)",
    "u = Unsqueeze(a, zero) y = Squeeze(u, zero)",
    "y = ReduceSum <keepdims = 0> (a, zero)",
    """k = ReduceMax <keepdims = 0> (x) c = Greater(k, k) y = If(c)
    <then_branch = t () => (int64[?] p) { p = Shape(a) },
     else_branch = e () => (int64[?] q) { r = Neg(a) q = Shape(r) }>""",
]

WRONG = ["float[7, 3]", "float[3, 2]", "float[7, 3, 1]", "float[6]", "float[N, N]", "float[]"]


def model(first, body, wrong, inputs):
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[?] y)'
        f" <{wrong} a, int64[1] zero = {{0}}, float[3, 2] w = {{1, 2, 3, 4, 5, 6}}>"
        f" {{ a = {first} {body} }}"
    )
    if "Shape(" in body and "Reshape" not in body:
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def due(proto, feeds):
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    del copy.graph.value_info[:]
    return ReferenceEvaluator(copy).run(None, feeds)


def run(proto, feeds):
    bundle = narrowpass.build({"main": ir.from_proto(proto)}, pipeline="")
    with narrowpass.load(bundle, backend="xnn-cpu") as program:
        return program.run(feeds)


def run_or_complaint(proto, feeds):
    try:
        return run(proto, feeds)
    except BackendError as error:
        return str(error)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("body", BODIES)
def test_what_follows_from_operators_counts(body, wrong):
    proto = model("Relu(x)", body, wrong, "float[2, 3] x")
    feeds = {"x": X}
    for got, expected in zip(run(proto, feeds).values(), due(proto, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("body", BODIES)
def test_where_nothing_follows_it_is_right_or_an_error(body, wrong):
    proto = model("Reshape(x, rs)", body, wrong, "float[2, 3] x, int64[K] rs")
    feeds = {"x": X, "rs": np.array([2, 3])}
    expected = due(proto, feeds)
    results = run_or_complaint(proto, feeds)
    if isinstance(results, str):
        assert "'a' is declared with" in results
        return
    for got, wanted in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
