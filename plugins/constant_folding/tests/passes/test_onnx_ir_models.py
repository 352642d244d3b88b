"""The models of docs/explanation/onnx-ir-passes.md, on which our passes differ from onnx-ir's."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from folding_kit import run

from narrowpass import Context, Observer
from narrowpass.framework.passes import run_checked
from narrowpass_constant_folding.passes.cse import Cse
from narrowpass_constant_folding.passes.dead_code import DeadCode
from narrowpass_constant_folding.passes.eliminate_identity import EliminateIdentity
from narrowpass_constant_folding.passes.infer_shapes import InferShapes


def parse(text, more=""):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21{more}]> {text}')


def operators(graph):
    """Return the operators of a graph and its subgraphs."""
    bodies = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    inner = [name for body in bodies for name in operators(body)]
    return sorted([*(node.op_type for node in graph.node), *inner])


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) { a = Bernoulli(x) b = Bernoulli(x) y = Sub(a, b) }",
        """g (float[2] x) => (float[2] y) {
            ratio = Constant <value_float = 0.5> ()
            training = Constant <value = bool {1}> ()
            a = Dropout(x, ratio, training) b = Dropout(x, ratio, training)
            y = Sub(a, b)
        }""",
        """g (float[1] x) => (float[1] y) {
            p = Constant <value_float = 0.0> () q = Constant <value_float = -0.0> ()
            a = Div(x, p) b = Div(x, q)
            y = Sub(a, b)
        }""",
    ],
    ids=["Bernoulli", "Dropout", "minus zero"],
)
def test_random_nodes_and_signed_zeros_are_not_merged(text):
    proto = parse(text)
    after, _, _ = run(Cse(), proto)
    assert operators(after.graph) == operators(proto.graph)


def test_two_outputs_that_are_one_value_keep_their_names():
    text = (
        "g (float[2] x) => (float[2] y, float[2] z) { a = Relu(x) y = Identity(a) z = Identity(a) }"
    )
    after, _, _ = run(EliminateIdentity(), parse(text))
    assert [value.name for value in after.graph.output] == ["y", "z"]
    assert operators(after.graph) == ["Identity", "Relu"]


def test_a_node_without_a_schema_stays():
    text = "g (float[2] x) => (float[2] y) { t = my.tools.Log(x) y = Relu(x) }"
    proto = parse(text, ', "my.tools" : 1')
    after, _, _ = run(DeadCode(), proto)
    assert operators(after.graph) == ["Log", "Relu"]


def test_a_wrong_declaration_does_not_stop_inference():
    """ONNX's checker is not asked, which refuses such a model."""
    text = "g (float[2] x) => (float[2] y) <float[3] a> { a = Relu(x) b = Neg(x) y = Add(a, b) }"
    result = run_checked(
        InferShapes(), ir.from_proto(parse(text)), Context(observer=Observer(strict=True))
    )
    assert str(result.model.graph[1].outputs[0].shape) == "[2]"
