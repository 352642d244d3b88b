"""Fields of a model that contradict each other, as passes leave them; the verifier names each."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify import fingerprint, verify

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,4] x) => (float[N,4] y)
<float[4] b = {1, 2, 3, 4}>
{
    [add] h = Add(x, b)
    [relu] y = Relu(h)
}"""


def model(text: str = TEXT) -> ir.Model:
    read = ir.from_onnx_text(text)
    verify(read)
    return read


def problems(subject: ir.Model) -> tuple[str, ...]:
    with pytest.raises(VerificationError) as caught:
        verify(subject)
    return tuple(map(str, caught.value.problems))


def initializer(subject: ir.Model) -> ir.Value:
    return subject.graph.initializers["b"]


def mark_input(subject):
    subject.graph.inputs[0]._is_graph_input = False


def mark_output(subject):
    subject.graph.outputs[0]._is_graph_output = False


def mark_initializer(subject):
    initializer(subject)._is_initializer = False


def mark_node(subject):
    subject.graph[0].graph = None


def computed_input(subject):
    subject.graph.inputs[0]._producer = subject.graph[1]


def computed_initializer(subject):
    initializer(subject)._producer = subject.graph[1]


def untyped_input(subject):
    subject.graph.inputs[0].type = None


def unnamed_input(subject):
    subject.graph.inputs[0]._name = None


def two_values(subject):
    subject.graph.inputs.append(ir.val("b", ir.DataType.FLOAT, [4]))


def undefined_type(subject):
    raw = ir.Tensor(np.zeros(4, np.float32), name="b")
    raw._dtype = ir.DataType.UNDEFINED
    initializer(subject).const_value = raw


def other_rank(subject):
    initializer(subject).const_value = ir.tensor(np.zeros((2, 2), np.float32), name="b")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (mark_input, "graph input 'x' is not marked as an input of its graph"),
        (mark_output, "graph output 'y': is not marked as an output of its graph"),
        (mark_initializer, "initializer 'b' is not marked as an initializer of its graph"),
        (mark_node, "node 'add' (Add): is not marked as a node of its graph"),
        (computed_input, "graph input 'x' is also computed by node 'relu' (Relu)"),
        (computed_initializer, "initializer 'b' is also the output of a node"),
        (untyped_input, "graph input 'x' has no type"),
        (unnamed_input, "graph input 0 has no name"),
        (two_values, "initializer 'b' has the name of a graph input, but is another value"),
        (undefined_type, "initializer 'b' has a tensor of no defined type"),
        (other_rank, "initializer 'b' is declared with the shape [4], but its tensor has [2,2]"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_field_that_contradicts_the_others(change, expected):
    subject = model()
    change(subject)
    assert expected in problems(subject)


def test_a_function_without_a_name():
    subject = model(
        """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
        g (float[2] x) => (float[2] y) { y = l.f (x) }
        <domain: "l", opset_import: ["" : 21]>
        f (a) => (b) { b = Neg(a) }"""
    )
    subject.functions["l", "f", ""].name = ""
    assert any("has no name" in problem for problem in problems(subject))


def test_functions_that_share_a_callee_do_not_recur():
    """Each is walked once; the second call meets one that is finished."""
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
        g (float[2] x) => (float[2] y) { y = l.both (x) }
        <domain: "l", opset_import: ["" : 21]>
        leaf (a) => (b) { b = Neg(a) }
        <domain: "l", opset_import: ["" : 21, "l" : 1]>
        one (a) => (b) { b = l.leaf (a) }
        <domain: "l", opset_import: ["" : 21, "l" : 1]>
        both (a) => (b) { c = l.one (a)  d = l.leaf (a)  b = Add(c, d) }"""
    subject = ir.from_onnx_text(text)
    for identifier in list(subject.functions):  # the caller before those that it calls, too
        subject.functions[identifier] = subject.functions.pop(identifier)
        verify(subject)
    onnx.checker.check_model(ir.to_proto(subject))


def test_a_model_of_old_age_imports_version_1():
    proto = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 1]>
        g (float[2] x) => (float[2] y) { y = Relu(x) }"""
    )
    proto.ir_version = 2
    del proto.opset_import[:]
    onnx.checker.check_model(proto)
    subject = ir.from_proto(proto)
    verify(subject)
    subject.graph[0].op_type = "Gelu"
    assert any("Gelu is not in version 1" in problem for problem in problems(subject))


def test_versions_start_at_1():
    subject = model()
    subject.graph.opset_imports["com.acme"] = 0
    assert problems(subject) == (
        "version 0 of the domain 'com.acme' is imported; versions start at 1",
    )


def test_an_operator_that_onnx_has_in_neither_version():
    """Of another domain, in another version than the model's: nobody can say what it was."""
    model(
        """<ir_version: 10, opset_import: ["" : 21, "l" : 1, "acme" : 2]>
        g (float[2] x) => (float[2] y) { h = l.f (x)  y = acme.Op (h) }
        <domain: "l", opset_import: ["acme" : 1]>
        f (a) => (b) { b = acme.Op (a) }"""
    )


def test_operators_that_onnx_does_not_know_are_let_through_where_asked():
    subject = model()
    subject.graph[1].op_type = "Nope"
    assert any("Nope is no operator" in problem for problem in problems(subject))
    verify(subject, unknown_operators=True)


def test_a_constant_of_sparse_values_states_no_type():
    values = onnx.helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [3.0])
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [2])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4])
    constant = ir.Node(
        "",
        "Constant",
        [],
        [ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, sparse)],
        name="sparse",
    )
    constant.outputs[0].name = "k"
    constant.outputs[0].type = ir.TensorType(ir.DataType.INT8)
    subject = model()
    subject.graph.insert_before(subject.graph[0], constant)
    verify(subject)


def graphs_of(number: int) -> ir.Model:
    """A node of another domain with a list of graphs, which negate `number` times."""
    branches = []
    for index in range(2):
        neg = ir.node("Neg" if index < number else "Abs", [ir.val("i", ir.DataType.FLOAT, [2])])
        neg.outputs[0].name = f"o{index}"
        branches.append(ir.Graph(list(neg.inputs), neg.outputs, nodes=[neg], name=f"b{index}"))
    subject = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
        g (float[2] x) => (float[2] y) { [op] y = acme.Op (x) }"""
    )
    subject.graph[0].attributes.add(ir.AttrGraphs("branches", branches))
    return subject


def test_each_graph_of_a_list_is_looked_at():
    subject = graphs_of(2)
    verify(subject)
    assert fingerprint(graphs_of(2)) == fingerprint(subject)
    assert len({fingerprint(graphs_of(number)) for number in range(3)}) == 3
    second = subject.graph[0].attributes["branches"].as_graphs()[1]
    second[0].op_type = "Nope"
    (problem,) = problems(subject)
    assert "Nope is no operator" in problem
    assert "in branches[1] of node 'op' (acme.Op)" in problem


def test_an_initializer_that_gets_or_loses_its_tensor_is_a_change():
    subject = model()
    before = fingerprint(subject)
    initializer(subject).const_value = None
    assert fingerprint(subject) != before


def test_an_attribute_of_no_known_kind_is_compared_by_its_object():
    """Sparse tensors have no content that is compared: the same object is no change."""
    sparse, other = onnx.SparseTensorProto(), onnx.SparseTensorProto()
    subject = model()
    add = subject.graph[0]
    add.attributes.add(ir.Attr("s", ir.AttributeType.SPARSE_TENSOR, sparse))
    before = fingerprint(subject)
    add.attributes.add(ir.Attr("s", ir.AttributeType.SPARSE_TENSOR, sparse))
    assert fingerprint(subject) == before
    add.attributes.add(ir.Attr("s", ir.AttributeType.SPARSE_TENSOR, other))
    assert fingerprint(subject) != before
