"""Models with one defect each: the verifier names it, and onnx.checker agrees where it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
import pytest

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify import verify

BASE = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
main (float[N,4] x, bool c) => (float[N,4] y)
<float[4] b = {1, 2, 3, 4}>
{
   [add] h = Add(x, b)
   [relu] r = Relu(h)
   [if] i = If(c) <
      then_branch = then_graph () => (float[N,4] t) { [exp] t = Exp(r) },
      else_branch = else_graph () => (float[N,4] e) { [neg] e = Neg(r) }
   >
   [call] y = local.scale <k = 2.0> (i)
}
<domain: "local", opset_import: ["" : 21]>
scale <k: float = 1.0> (a) => (z)
{
   [const] kk = Constant <value_float: float = @k> ()
   [mul] z = Mul(a, kk)
}
"""

FLOAT = ir.DataType.FLOAT
Breaker = Callable[[ir.Model], None]


@dataclass(frozen=True)
class Case:
    """One defect.

    Attributes:
        name: what is wrong.
        change: breaks it.
        expected: parts of the one sentence.
        checker: whether onnx.checker refuses the file too; None where no file can be written.
    """

    name: str
    change: Breaker
    expected: tuple[str, ...]
    checker: bool | None


CASES: list[Case] = []


def broken(name: str, *expected: str, checker: bool | None) -> Callable[[Breaker], Breaker]:
    def register(change: Breaker) -> Breaker:
        CASES.append(Case(name, change, expected, checker))
        return change

    return register


def model() -> ir.Model:
    return ir.from_onnx_text(BASE)


def node(model: ir.Model, name: str) -> ir.Node:
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    return next(node for graph in graphs for node in graph if node.name == name)


def scale(model: ir.Model) -> ir.Function:
    return model.functions["local", "scale", ""]


def branch(model: ir.Model) -> ir.Graph:
    return node(model, "if").attributes["then_branch"].as_graph()


def constant(name: str, value: np.ndarray) -> ir.Value:
    tensor = ir.tensor(value, name=name)
    kind = ir.TensorType(tensor.dtype)
    return ir.Value(name=name, type=kind, shape=ir.Shape(value.shape), const_value=tensor)


@broken("order", "'relu'", "'h' is used before", "'add'", checker=True)
def _(model):
    add = node(model, "add")
    model.graph.remove(add)
    model.graph.insert_after(node(model, "relu"), add)


@broken("order in a branch", "'exp'", "then_branch of node 'if'", "used before", checker=True)
def _(model):
    graph = branch(model)
    exp = node(model, "exp")
    late = ir.node("Abs", [node(model, "relu").outputs[0]], name="late")
    late.outputs[0].name = "late_out"
    graph.append(late)
    exp.replace_input_with(0, late.outputs[0])


@broken("order in a function", "'mul'", "in function 'local.scale'", "used before", checker=True)
def _(model):
    const = node(model, "const")
    scale(model).remove(const)
    scale(model).append(const)


@broken("dangling input", "'relu'", "input 0 'ghost' is defined by nothing", checker=True)
def _(model):
    node(model, "relu").replace_input_with(0, ir.val("ghost", FLOAT, ["N", 4]))


@broken("dangling input in a branch", "'exp'", "'ghost' is defined by nothing", checker=True)
def _(model):
    node(model, "exp").replace_input_with(0, ir.val("ghost", FLOAT, ["N", 4]))


@broken("function sees the main graph", "'mul'", "'r' belongs to the graph", checker=True)
def _(model):
    node(model, "mul").replace_input_with(0, node(model, "relu").outputs[0])


@broken("outer graph sees a branch", "'call'", "'t' belongs to the graph 'then_g", checker=True)
def _(model):
    node(model, "call").replace_input_with(0, node(model, "exp").outputs[0])


@broken("value of another model", "'relu'", "input 0 'h' is another value", checker=False)
def _(model):
    other = ir.from_onnx_text(BASE)
    node(model, "relu").replace_input_with(0, node(other, "add").outputs[0])


@broken("producer is in no graph", "'relu'", "node 'loose' (Abs), which is in no g", checker=True)
def _(model):
    loose = ir.node("Abs", [None], name="loose")
    loose.outputs[0].name = "loose_out"
    node(model, "relu").replace_input_with(0, loose.outputs[0])


@broken("output defined twice", "'relu'", "output 'h' is defined twice", "'add'", checker=True)
def _(model):
    node(model, "relu").outputs[0].name = "h"
    for user in ("exp", "neg"):
        node(model, user).replace_input_with(0, node(model, "add").outputs[0])


@broken("output named as an input", "'add'", "'x' is defined twice: also a graph i", checker=True)
def _(model):
    node(model, "add").outputs[0].name = "x"
    node(model, "relu").replace_input_with(0, model.graph.inputs[0])


@broken("branch hides an outer name", "'exp'", "'h' hides a value of an enclosing", checker=True)
def _(model):
    node(model, "exp").outputs[0].name = "h"


@broken("inputs of one name", "graph input 'x' is defined twice", checker=True)
def _(model):
    model.graph.inputs.append(ir.val("x", FLOAT, ["N", 4]))


@broken("unnamed value", "'relu'", "input 0 without a name cannot be used", checker=True)
def _(model):
    node(model, "add").outputs[0].name = ""


@broken("no output name", "'spare'", "output 0 has no name", checker=None)
def _(model):
    spare = ir.node("Abs", [model.graph.inputs[0]], name="spare")
    node(model, "add").append(spare)
    spare.outputs[0].name = None


@broken("graph output of nothing", "graph output 'y2': is produced by nothing", checker=True)
def _(model):
    model.graph.outputs.append(ir.val("y2", FLOAT, ["N", 4]))


@broken("branch returns an outer value", "graph output 'r'", "Identity", checker=True)
def _(model):
    outputs = branch(model).outputs
    outputs.clear()
    outputs.data.append(node(model, "relu").outputs[0])


@broken("initializer without a tensor", "initializer 'b' has no const_value", checker=True)
def _(model):
    model.graph.initializers["b"].const_value = None


@broken("initializer of another type", "'b' is declared as tensor(float)", "do", checker=False)
def _(model):
    model.graph.initializers["b"].const_value = ir.tensor(np.zeros(4), name="b")


@broken("initializer of another shape", "'b' is declared with the shape [4]", "3", checker=False)
def _(model):
    tensor = ir.tensor(np.zeros(3, np.float32), name="b")
    model.graph.initializers["b"].const_value = tensor


@broken("initializer under a wrong key", "initializer 'q' is named 'b'", checker=False)
def _(model):
    initializers = model.graph.initializers
    initializers.data["q"] = initializers.data.pop("b")


@broken("initializer that IR 3 forbids", "initializer 'b' is no graph input", "to 4", checker=True)
def _(model):
    model.ir_version = 3


@broken("initializer of a function", "'local.scale': has an initializer 'w'", checker=False)
def _(model):
    scale(model).graph.initializers.add(constant("w", np.zeros(2, np.float32)))


@broken("no opset of a domain", "'add'", "'com.acme', whose opset is not imported", checker=True)
def _(model):
    node(model, "add").domain = "com.acme"


@broken("no opset at all", "the model imports no opset", checker=True)
def _(model):
    model.graph.opset_imports.clear()


@broken("opset of the future", "version 9999 of the domain 'ai.onnx'", checker=False)
def _(model):
    model.graph.opset_imports[""] = 9999
    scale(model).opset_imports[""] = 9999


@broken("IR version of the future", "the model has IR version 9999", checker=True)
def _(model):
    model.ir_version = 9999


@broken("unknown operator", "'relu'", "Rellu is no operator of the domain 'ai.onnx'", checker=True)
def _(model):
    node(model, "relu").op_type = "Rellu"


@broken("unknown operator in a branch", "'exp'", "Expp is no operator", checker=True)
def _(model):
    node(model, "exp").op_type = "Expp"


@broken("unknown operator in a function", "'mul'", "Mull is no operator", checker=True)
def _(model):
    node(model, "mul").op_type = "Mull"


@broken("unknown operator of ai.onnx.ml", "'relu'", "no operator of the domain", checker=True)
def _(model):
    model.graph.opset_imports["ai.onnx.ml"] = 3
    node(model, "relu").domain = "ai.onnx.ml"


@broken("operator of a later opset", "'relu'", "Gelu is not in version 19", checker=True)
def _(model):
    model.graph.opset_imports[""] = 19
    scale(model).opset_imports[""] = 19
    node(model, "relu").op_type = "Gelu"


@broken(
    "function of another opset", "'mul'", "version 12", "model imports version 21", checker=True
)
def _(model):
    scale(model).opset_imports[""] = 12


@broken("too few inputs", "'add'", "has 1 input, but Add of ai.onnx 14 takes 2", checker=True)
def _(model):
    node(model, "add").resize_inputs(1)


@broken("too many inputs", "'relu'", "has 2 inputs, but Relu", "takes 1", checker=True)
def _(model):
    relu = node(model, "relu")
    relu.resize_inputs(2)
    relu.replace_input_with(1, model.graph.inputs[0])


@broken("input left out", "'add'", "input 1 (B) is left out", checker=True)
def _(model):
    node(model, "add").replace_input_with(1, None)


@broken("too many outputs", "'relu'", "has 2 outputs, but Relu", checker=True)
def _(model):
    relu = node(model, "relu")
    relu.resize_outputs(2)
    relu.outputs[1].name = "more"


@broken("outputs of BatchNormalization", "'bn'", "has 2 outputs", "1 or 3", checker=True)
def _(model):
    x, b = model.graph.inputs[0], model.graph.initializers["b"]
    bn = ir.node("BatchNormalization", [x, b, b, b, b], num_outputs=2, name="bn")
    node(model, "add").append(bn)


@broken("neither inputs nor outputs", "'none'", "neither inputs nor outputs", checker=True)
def _(model):
    model.graph.opset_imports["com.acme"] = 1
    none = ir.node("Nothing", [], domain="com.acme", num_outputs=0, name="none")
    node(model, "add").append(none)


@broken("call with too many inputs", "'call'", "2 inputs, but the function", checker=False)
def _(model):
    call = node(model, "call")
    call.resize_inputs(2)
    call.replace_input_with(1, model.graph.inputs[0])


@broken("attribute missing", "'relu'", "lacks the attribute 'to'", checker=True)
def _(model):
    node(model, "relu").op_type = "Cast"


@broken("attribute unknown", "'relu'", "has an attribute 'alpha'", checker=True)
def _(model):
    node(model, "relu").attributes.add(ir.AttrFloat32("alpha", 0.5))


@broken("attribute of another type", "'leaky'", "'alpha' is of type INT", "FLOAT", checker=True)
def _(model):
    leaky = ir.node("LeakyRelu", [model.graph.inputs[0]], {"alpha": 1}, name="leaky")
    node(model, "add").append(leaky)


@broken("attribute without a value", "'const2'", "attribute 'value' has no value", checker=None)
def _(model):
    attribute = ir.Attr("value", ir.AttributeType.TENSOR, None)
    node(model, "add").append(ir.Node("", "Constant", [], [attribute], name="const2"))


@broken("reference outside of functions", "'leaky'", "'k' of a function", checker=False)
def _(model):
    attribute = ir.RefAttr("alpha", "k", ir.AttributeType.FLOAT)
    node(model, "add").append(
        ir.Node("", "LeakyRelu", [model.graph.inputs[0]], [attribute], name="leaky")
    )


@broken("reference to nothing", "'const'", "refers to 'gone'", "not declare", checker=False)
def _(model):
    attribute = ir.RefAttr("value_float", "gone", ir.AttributeType.FLOAT)
    node(model, "const").attributes.add(attribute)


@broken("recursion", "local.scale -> local.scale; a function may not recur", checker=True)
def _(model):
    scale(model).opset_imports["local"] = 1
    mul = node(model, "mul")
    again = ir.node("scale", [mul.inputs[0]], domain="local", name="again")
    mul.append(again)


@broken("recursion through two", "local.other -> local.scale", "may not recur", checker=True)
def _(model):
    value = ir.val("v")
    back = ir.node("scale", [value], domain="local", name="back")
    back.outputs[0].name = "o"
    graph = ir.Graph([value], back.outputs, nodes=[back], opset_imports={"local": 1})
    other = ir.Function("local", "other", graph=graph, attributes=())
    model.functions[other.identifier()] = other
    scale(model).opset_imports["local"] = 1
    mul = node(model, "mul")
    mul.append(ir.node("other", [mul.inputs[0]], domain="local", name="forth"))


@broken("function output twice", "'local.scale': lists the output 'z' twice", checker=True)
def _(model):
    scale(model).outputs.append(scale(model).outputs[0])


@broken("type that an operator lacks", "'add'", "input 0 (A) is tensor(bool)", checker=False)
def _(model):
    node(model, "add").replace_input_with(0, model.graph.inputs[1])
    node(model, "add").replace_input_with(1, model.graph.inputs[1])
    node(model, "add").outputs[0].type = None


@broken("types that must agree", "'add'", "(B) is tensor(double)", "of input 0 (A)", checker=False)
def _(model):
    double = constant("d", np.zeros(4))
    model.graph.initializers.add(double)
    node(model, "add").replace_input_with(1, double)


@broken("output type that must agree", "'relu'", "output 0 (Y) is tensor(int32)", checker=False)
def _(model):
    node(model, "add").outputs[0].type = ir.TensorType(FLOAT)
    node(model, "relu").outputs[0].type = ir.TensorType(ir.DataType.INT32)


@broken("fixed type", "'shape'", "output 0 (shape) is tensor(int32)", checker=False)
def _(model):
    shape = ir.node("Shape", [model.graph.inputs[0]], name="shape")
    shape.outputs[0].type = ir.TensorType(ir.DataType.INT32)
    node(model, "add").append(shape)


@broken("sequence for a tensor", "'relu'", "is seq(tensor(float))", checker=False)
def _(model):
    node(model, "add").outputs[0].type = ir.SequenceType(ir.TensorType(FLOAT))
    node(model, "add").op_type = "Anything"
    node(model, "add").domain = "local"


@broken("Cast to another type", "'cast'", "tensor(float), but attribute 'to'", checker=False)
def _(model):
    cast = ir.node("Cast", [model.graph.inputs[0]], {"to": ir.DataType.FLOAT16}, name="cast")
    cast.outputs[0].type = ir.TensorType(FLOAT)
    node(model, "add").append(cast)


@broken("Constant of another type", "'k'", "attribute 'value' sets it", checker=False)
def _(model):
    k = ir.node("Constant", [], {"value": ir.tensor(np.zeros(2))}, name="k")
    k.outputs[0].type = ir.TensorType(FLOAT)
    node(model, "add").append(k)


@broken("branch of another type", "'if'", "of its then_branch is tensor(double)", checker=False)
def _(model):
    cast = ir.node("Cast", [node(model, "exp").outputs[0]], {"to": ir.DataType.DOUBLE})
    cast.outputs[0].type = ir.TensorType(ir.DataType.DOUBLE)
    branch(model).append(cast)
    branch(model).outputs[0] = cast.outputs[0]
    node(model, "if").outputs[0].type = ir.TensorType(FLOAT)


@broken("branch with more results", "'if'", "needs 1 outputs of its then_branch", checker=False)
def _(model):
    more = ir.node("Abs", [node(model, "exp").outputs[0]])
    branch(model).append(more)
    branch(model).outputs.append(more.outputs[0])


@broken("graph in two places", "the graph 'then_graph'", "is held in two places", checker=False)
def _(model):
    attributes = node(model, "if").attributes
    attributes.add(ir.AttrGraph("else_branch", attributes["then_branch"].as_graph()))
    # The nodes of the graph that was dropped would be stale consumers.
    for use, index in node(model, "relu").outputs[0].uses():
        if use.name == "neg":
            use.replace_input_with(index, None)


@broken("stale consumer", "value 'h' is still consumed by node 'old'", "safe=True", checker=False)
def _(model):
    old = ir.node("Abs", [node(model, "add").outputs[0]], name="old")
    node(model, "add").append(old)
    model.graph.remove(old)


@broken("missing consumer", "value 'h' is an input in 1 places, but lists 0", checker=False)
def _(model):
    node(model, "add").outputs[0]._remove_usage(node(model, "relu"), 0)


@broken("consumers of each other", "'h' lists node 'add' (Add) as a consumer", checker=False)
def _(model):
    # As many uses as inputs, and each at a node of the model.
    one, other = node(model, "relu").inputs[0], node(model, "add").inputs[0]
    one._uses, other._uses = other._uses, one._uses


@broken("wrong consumer", "value 'h' lists node 'add' (Add) as a consumer", checker=False)
def _(model):
    node(model, "add").outputs[0]._add_usage(node(model, "add"), 1)


@broken("wrong producer", "'relu'", "output 0 'r' has another producer", checker=False)
def _(model):
    node(model, "relu").outputs[0]._producer = node(model, "add")


@broken("attribute under a wrong key", "'call'", "attribute 'k' is named 'q'", checker=False)
def _(model):
    node(model, "call").attributes["k"].name = "q"


@broken("function under a wrong key", "'local.scale': is listed as 'local.s'", checker=True)
def _(model):
    model.functions["local", "s", ""] = model.functions.pop(("local", "scale", ""))
    node(model, "call").op_type = "s"
    scale_again = model.functions["local", "s", ""]
    assert scale_again.name == "scale"
    model.functions["local", "scale", ""] = scale_again


def test_the_model_that_is_broken_is_valid():
    verify(model())
    onnx.checker.check_model(ir.to_proto(model()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_defect_is_named(case):
    subject = model()
    case.change(subject)
    with pytest.raises(VerificationError) as caught:
        verify(subject)
    problems = caught.value.problems
    matching = [p for p in problems if all(part in p for part in case.expected)]
    assert matching, problems
    assert matching[0] in str(caught.value)
    amount = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert f" is invalid ({amount}):\n" in str(caught.value)
    if case.checker is None:
        return
    proto = ir.to_proto(subject)
    if case.checker:
        with pytest.raises(onnx.checker.ValidationError):
            onnx.checker.check_model(proto)
    else:
        onnx.checker.check_model(proto)


def test_at_least_as_many_defects_as_promised():
    assert len({case.name for case in CASES}) == len(CASES) >= 25


def test_many_problems_end_at_twenty():
    subject = model()
    add = node(subject, "add")
    for index in range(50):
        add.append(ir.node("Nope", [subject.graph.inputs[0]], name=f"n{index}"))
    with pytest.raises(VerificationError, match="at least 20 problems") as caught:
        verify(subject)
    assert len(caught.value.problems) == 20
