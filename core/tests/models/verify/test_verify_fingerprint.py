"""The fingerprint changes with the model, and only then."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass_ir.verify import fingerprint, verify

TEXT = """
<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
g (float[N,4] x, bool c) => (float[N,4] y)
<float[4] b = {1, 2, 3, 4}>
{
    [add] h = Add(x, b)
    [clip] l = Clip(h, , )
    [if] i = If(c) <then_branch = t () => (float[N,4] p) { [soft] p = Softmax <axis = 1> (l) },
                    else_branch = e () => (float[N,4] q) { [neg] q = Neg(l) }>
    [const] k = Constant <value = float {2.0}> ()
    [mul] m = Mul(i, k)
    [call] y = f.fun <a = 1.0> (m)
}
<domain: "f", opset_import: ["" : 21]>
fun <a: float = 0.5> (v) => (w) { [leaky] w = LeakyRelu <alpha: float = @a> (v) }
"""


def read() -> ir.Model:
    model = ir.from_onnx_text(TEXT)
    big = ir.tensor(np.zeros((64, 64), np.float32), name="big")
    kind = ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name="big", type=kind, shape=ir.Shape([64, 64]), const_value=big)
    model.graph.initializers.add(value)
    return model


def node(model: ir.Model, name: str) -> ir.Node:
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    return next(node for graph in graphs for node in graph if node.name == name)


def replace(model: ir.Model, name: str, array: np.ndarray) -> None:
    model.graph.initializers[name].const_value = ir.tensor(array, name=name)


def swap(model: ir.Model) -> None:
    const = node(model, "const")
    model.graph.remove(const)
    model.graph.insert_before(node(model, "add"), const)


CHANGES = {
    "producer": lambda m: setattr(m, "producer_name", "else"),
    "IR version": lambda m: setattr(m, "ir_version", 9),
    "model doc": lambda m: setattr(m, "doc_string", "text"),
    "model metadata": lambda m: m.metadata_props.update(a="b"),
    "graph metadata": lambda m: m.graph.metadata_props.update(a="b"),
    "graph name": lambda m: setattr(m.graph, "name", "g2"),
    "opset": lambda m: m.graph.opset_imports.update({"": 20}),
    "function's opset": lambda m: m.functions["f", "fun", ""].opset_imports.update({"": 20}),
    "function's default": lambda m: m.functions["f", "fun", ""].attributes.add(
        ir.AttrFloat32("a", 0.25)
    ),
    "function gone": lambda m: m.functions.clear(),
    "node name": lambda m: setattr(node(m, "add"), "name", "add2"),
    "node domain": lambda m: setattr(node(m, "add"), "domain", "f"),
    "node metadata": lambda m: node(m, "add").metadata_props.update(a="b"),
    "node doc": lambda m: setattr(node(m, "add"), "doc_string", "text"),
    "operator": lambda m: setattr(node(m, "add"), "op_type", "Sub"),
    "operator in a branch": lambda m: setattr(node(m, "neg"), "op_type", "Abs"),
    "operator in a function": lambda m: setattr(node(m, "leaky"), "op_type", "Elu"),
    "order": swap,
    "input": lambda m: node(m, "mul").replace_input_with(0, m.graph.inputs[0]),
    "input left out": lambda m: node(m, "mul").replace_input_with(0, None),
    "trailing input": lambda m: node(m, "clip").resize_inputs(1),
    "attribute": lambda m: node(m, "soft").attributes.add(ir.AttrInt64("axis", 0)),
    "attribute's type": lambda m: node(m, "soft").attributes.add(ir.AttrFloat32("axis", 1)),
    "attribute gone": lambda m: node(m, "soft").attributes.clear(),
    "tensor attribute": lambda m: node(m, "const").attributes.add(
        ir.AttrTensor("value", ir.tensor(np.array(3, np.float32)))
    ),
    "negative zero": lambda m: node(m, "call").attributes.add(ir.AttrFloat32("a", -0.0)),
    "value name": lambda m: setattr(node(m, "add").outputs[0], "name", "h2"),
    "value type": lambda m: setattr(node(m, "add").outputs[0], "dtype", ir.DataType.FLOAT),
    "value shape": lambda m: setattr(node(m, "add").outputs[0], "shape", ir.Shape([1, 4])),
    "value metadata": lambda m: node(m, "add").outputs[0].metadata_props.update(a="b"),
    "dimension's name": lambda m: setattr(m.graph.inputs[0], "shape", ir.Shape(["M", 4])),
    "dimension unknown": lambda m: setattr(m.graph.inputs[0], "shape", ir.Shape([None, 4])),
    "output order": lambda m: m.graph.outputs.append(m.graph.inputs[0]),
    "small weight's content": lambda m: replace(m, "b", np.ones(4, np.float32)),
    "small weight's type": lambda m: replace(m, "b", np.zeros(4, np.float16)),
    "large weight": lambda m: replace(m, "big", np.zeros((64, 64), np.float32)),
    "initializer gone": lambda m: m.graph.initializers.pop("big"),
}


def test_the_model_is_valid():
    verify(read())


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen(name):
    model = read()
    before = fingerprint(model)
    CHANGES[name](model)
    assert fingerprint(model) != before


def test_nothing_changes_nothing():
    model = read()
    assert fingerprint(model) == fingerprint(model)


def test_clone_that_shares_tensors_has_the_same():
    model = read()
    assert fingerprint(model.clone()) == fingerprint(model)


def test_small_equal_tensor_is_no_change():
    model = read()
    before = fingerprint(model)
    replace(model, "b", np.array([1, 2, 3, 4], np.float32))
    assert fingerprint(model) == before


def test_an_equal_attribute_is_no_change():
    """Another object of the same value, or list of values."""
    text = """<ir_version: 10, opset_import: ["" : 21, "a" : 1]>
        g (float[2] x) => (float[2] y)
        { y = a.Op <f = 0.1, i = 123456789, s = "text", l = [0.5, 0.25]> (x) }"""
    one, other = ir.from_onnx_text(text), ir.from_onnx_text(text)
    before = fingerprint(one)
    for name, attribute in other.graph[0].attributes.items():
        one.graph[0].attributes[name] = attribute
    assert fingerprint(one) == before


def test_empty_text_is_no_text():
    model = read()
    before = fingerprint(model)
    model.doc_string = ""
    node(model, "add").doc_string = ""
    assert fingerprint(model) == before


def test_back_and_forth_is_no_change():
    model = read()
    before = fingerprint(model)
    mul = node(model, "mul")
    kept = mul.inputs[0]
    mul.replace_input_with(0, None)
    mul.replace_input_with(0, kept)
    assert fingerprint(model) == before


def test_large_weights_are_not_read():
    def evaluate() -> ir.TensorProtocol:
        raise AssertionError("a weight was read")

    model = read()
    shape = ir.Shape([64, 64])
    lazy = ir.LazyTensor(evaluate, dtype=ir.DataType.FLOAT, shape=shape, name="big")
    model.graph.initializers["big"].const_value = lazy
    fingerprint(model)


def test_values_of_all_attribute_types():
    model = read()
    attributes = [
        ir.AttrFloat32s("fs", [1.0, float("nan")]),
        ir.AttrInt64s("is", [1, 2]),
        ir.AttrString("s", "text"),
        ir.AttrStrings("ss", ["a", "b"]),
        ir.AttrTensors("ts", [ir.tensor([1.0]), ir.tensor(["text"])]),
        ir.AttrTypeProto("tp", ir.TypeAndShape(ir.TensorType(ir.DataType.FLOAT), ir.Shape([1]))),
        ir.Attr("bytes", ir.AttributeType.STRING, b"\xff"),
    ]
    prints = {fingerprint(model)}
    for attribute in attributes:
        node(model, "add").attributes.add(attribute)
        prints.add(fingerprint(model))
    assert len(prints) == len(attributes) + 1
    assert fingerprint(model) == fingerprint(model)
