"""Random damage: what the verifier lets through, onnx.checker must let through too."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
import onnx.checker
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify import verify

BASES = (
    """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    main (float[N,4] x, bool c) => (float[N,4] y, float[N,4] r)
    <float[4] b = {1, 2, 3, 4}, float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
    {
       [add] h = Add(x, b)
       [matmul] m = MatMul(h, w)
       [relu] r = Relu(m)
       [if] i = If(c) <
          then_branch = then_graph () => (float[N,4] t) { [exp] t0 = Exp(r) [t] t = Mul(t0, b) },
          else_branch = else_graph () => (float[N,4] e) <float[4] q = {1, 2, 3, 4}>
              { [neg] e = Add(r, q) }
       >
       [soft] s = Softmax <axis = 1> (i)
       [call] y = local.scale <k = 2.0> (s)
    }
    <domain: "local", opset_import: ["" : 21]>
    scale <k: float = 1.0> (a) => (z)
    {
       [const] kk = Constant <value_float: float = @k> ()
       [mul] z = Mul(a, kk)
    }
    """,
    """
    <ir_version: 3, opset_import: ["" : 9]>
    old (float[1,2,4,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[1,2,4,4] y)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}>
    {
       [bn] n = BatchNormalization <epsilon = 0.001> (x, s, b, m, v)
       [leaky] l = LeakyRelu <alpha = 0.1> (n)
       [drop] d, mask = Dropout(l)
       [clip] y = Clip <min = 0.0, max = 6.0> (d)
    }
    """,
    """
    <ir_version: 8, opset_import: ["" : 17]>
    loop (int64 n, bool c, float[2] x) => (float[2] y, float[K,2] scan)
    {
       [neg] p = Neg(x)
       [loop] y, scan = Loop(n, c, p) <
          body = b (int64 i, bool c, float[2] a) => (bool d, float[2] z, float[2] o)
          {
             [keep] d = Identity(c)
             [sum] z = Add(a, x)
             [out] o = Clip(z, , )
          }
       >
    }
    """,
)

OPERATORS = ("Relu", "Add", "Softmax", "Cast", "Gelu", "Clip", "Concat", "Nope", "Identity")

Mutation = Callable[[ir.Model, random.Random], None]


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    return [*model.graphs(), *(function.graph for function in model.functions.values())]


def all_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for graph in all_graphs(model) for node in graph]


def all_values(model: ir.Model) -> list[ir.Value]:
    values = [value for node in all_nodes(model) for value in node.outputs]
    for graph in all_graphs(model):
        values += [*graph.inputs, *graph.initializers.values()]
    return values


def move(model, rng):
    node, target = rng.choices(all_nodes(model), k=2)
    if node is not target and node.graph is target.graph:
        node.graph.remove(node)
        target.append(node)


def move_to_another_graph(model, rng):
    node, target = rng.choices(all_nodes(model), k=2)
    if node is target:
        return
    node.graph.remove(node)
    target.append(node)


def rewire(model, rng):
    node = rng.choice([node for node in all_nodes(model) if node.inputs])
    node.replace_input_with(rng.randrange(len(node.inputs)), rng.choice(all_values(model)))


def leave_out(model, rng):
    node = rng.choice([node for node in all_nodes(model) if node.inputs])
    node.replace_input_with(rng.randrange(len(node.inputs)), None)


def dangle(model, rng):
    node = rng.choice([node for node in all_nodes(model) if node.inputs])
    node.replace_input_with(rng.randrange(len(node.inputs)), ir.Value(name="dangling"))


def rename(model, rng):
    value, other = rng.sample(all_values(model), 2)
    if not value.is_initializer():
        value.name = other.name


def unname(model, rng):
    node = rng.choice(all_nodes(model))
    node.outputs[rng.randrange(len(node.outputs))].name = ""


def remove(model, rng):
    node = rng.choice(all_nodes(model))
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    node.graph.remove(node)


def change_operator(model, rng):
    rng.choice(all_nodes(model)).op_type = rng.choice(OPERATORS)


def change_domain(model, rng):
    rng.choice(all_nodes(model)).domain = rng.choice(("com.acme", "local", "ai.onnx.ml", ""))


def change_opset(model, rng):
    rng.choice(all_graphs(model)).opset_imports[""] = rng.randrange(1, 23)


def change_ir_version(model, rng):
    model.ir_version = rng.choice((3, 4, 8, 10))


def drop_opset(model, rng):
    imports = rng.choice(all_graphs(model)).opset_imports
    if imports:
        imports.pop(rng.choice(sorted(imports)))


def drop_attribute(model, rng):
    node = rng.choice(all_nodes(model))
    for name in list(node.attributes)[:1]:
        if node.attributes[name].type == ir.AttributeType.GRAPH:
            for inner in node.attributes[name].as_graph():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
        del node.attributes[name]


def add_attribute(model, rng):
    name = rng.choice(("axis", "alpha", "to", "bogus", "__private"))
    value = rng.choice((1, 1.0, "text", [1, 2]))
    rng.choice(all_nodes(model)).attributes[name] = ir.convenience.convert_attribute(name, value)


def resize_inputs(model, rng):
    node = rng.choice(all_nodes(model))
    node.resize_inputs(rng.randrange(4))


def add_output(model, rng):
    node = rng.choice(all_nodes(model))
    node.resize_outputs(len(node.outputs) + 1)
    node.outputs[-1].name = rng.choice(("extra", "x", ""))


def drop_graph_input(model, rng):
    inputs = rng.choice(all_graphs(model)).inputs
    if inputs:
        inputs.pop(rng.randrange(len(inputs)))


def drop_initializer(model, rng):
    initializers = rng.choice(all_graphs(model)).initializers
    if initializers:
        initializers.pop(rng.choice(sorted(initializers)))


def empty_initializer(model, rng):
    values = [v for graph in all_graphs(model) for v in graph.initializers.values()]
    if values:
        rng.choice(values).const_value = None


def call_itself(model, rng):
    for function in model.functions.values():
        function.opset_imports["local"] = 1
        node = rng.choice(list(function))
        node.domain, node.op_type = function.domain, function.name


MUTATIONS: tuple[Mutation, ...] = (
    move,
    move_to_another_graph,
    rewire,
    leave_out,
    dangle,
    rename,
    unname,
    remove,
    change_operator,
    change_domain,
    change_opset,
    change_ir_version,
    drop_opset,
    drop_attribute,
    add_attribute,
    resize_inputs,
    add_output,
    drop_graph_input,
    drop_initializer,
    empty_initializer,
    call_itself,
)


def damaged(base: str, inferred: bool, seed: int) -> tuple[ir.Model, str]:
    proto = onnx.parser.parse_model(base)
    if inferred:
        proto = onnx.shape_inference.infer_shapes(proto)
    model = ir.from_proto(proto)
    rng = random.Random(seed)
    applied = rng.choices(MUTATIONS, k=rng.choice((1, 1, 1, 2, 3)))
    for mutate in applied:
        mutate(model, rng)
    return model, ", ".join(mutate.__name__ for mutate in applied)


@pytest.mark.parametrize("inferred", [False, True], ids=["plain", "inferred"])
@pytest.mark.parametrize("base", range(len(BASES)))
def test_what_passes_here_passes_the_checker(base, inferred):
    accepted = refused = 0
    for seed in range(600):
        model, applied = damaged(BASES[base], inferred, seed)
        try:
            verify(model)
        except VerificationError:
            refused += 1
            continue
        accepted += 1
        proto = ir.to_proto(model)
        try:
            onnx.checker.check_model(proto)
        except onnx.checker.ValidationError as error:
            pytest.fail(f"seed {seed} ({applied}): verified, but the checker says: {error}")
        verify(ir.from_proto(proto))
    # Both kinds must occur, or the test shows nothing.
    assert accepted > 50
    assert refused > 50
