"""Models that the verifier must accept: onnx's own, and valid tricky ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir
import pytest
from onnx.backend.test.loader import load_model_tests

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify import verify

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))

TRICKY = {
    "initializers that are inputs, IR 3": """
        <ir_version: 3, opset_import: ["" : 9]>
        g (float[N,4] x, float[4] b) => (float[N,4] y) <float[4] b = {1, 2, 3, 4}>
        { y = Add(x, b) }""",
    "initializer that is an output": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] w, float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }""",
    "input that is an output": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }""",
    "one value twice an output": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }""",
    "nodes without results that count": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] x) { dead = Neg(x) }""",
    "outputs left out": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3,1,4] x, float[1,8,4] w, float[1,8,2] r) => (float[1,1,2] h)
        { , h = LSTM <hidden_size = 2> (x, w, r) }""",
    "inputs left out": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, float m) => (float[4] y) { y = Clip(x, , m) }""",
    "branch takes a name of a later outer node": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2] x) => (float[2] y)
        {
            i = If(c) <then_branch = t () => (float[2] late) { late = Neg(x) },
                       else_branch = e () => (float[2] late) { late = Abs(x) }>
            late = Exp(i)
            y = Identity(late)
        }""",
    "branch takes the name of its node's result": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2] x) => (float[2] y)
        {
            y = If(c) <then_branch = t () => (float[2] y) { y = Neg(x) },
                       else_branch = e () => (float[2] y) { y = Abs(x) }>
        }""",
    "body input hides an outer name": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64 n, bool c, float[2] x) => (float[2] y)
        {
            y = Loop(n, c, x) <body = b (int64 i, bool c, float[2] x) => (bool d, float[2] z)
                { d = Identity(c)
                  z = Neg(x) }>
        }""",
    "Scan of opset 8, whose body does not see the lengths": """
        <ir_version: 3, opset_import: ["" : 8]>
        g (float[1,2] s, float[1,3,2] x) => (float[1,2] e, float[1,3,2] y)
        {
            e, y = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] v)
                => (float[2] c, float[2] d) { c = Add(a, v)
                                              d = Identity(c) }> (, s, x)
        }""",
    "outputs of many left out": """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[4] x) => (float[1] a, float[1] d)
        { a, , , d = Split <axis = 0, num_outputs = 4> (x) }""",
    "two levels of capture": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2] x) => (float[2] y)
        {
            h = Exp(x)
            y = If(c) <
                then_branch = t () => (float[2] t1) {
                    t1 = If(c) <then_branch = tt () => (float[2] a) { a = Neg(h) },
                                else_branch = te () => (float[2] b) { b = Add(h, x) }>
                },
                else_branch = e () => (float[2] e1) { e1 = Abs(h) }>
        }""",
    "domain that onnx does not know": """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2] x) => (float[2] y) { y = com.microsoft.FusedGelu <what = 1> (x, x, x) }""",
    "standard domain by its long name": """
        <ir_version: 8, opset_import: ["ai.onnx" : 17]>
        g (float[2] x) => (float[2] y) { y = Neg(x) }""",
    "classical models": """
        <ir_version: 8, opset_import: ["ai.onnx.ml" : 3]>
        g (float[N,3] x) => (float[N,3] y) { y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }""",
    "training": """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
        g (float r, int64 t, float[2] x, float[2] g0, float[2] h) => (float[2] nx, float[2] nh)
        { nx, nh = ai.onnx.preview.training.Adagrad (r, t, x, g0, h) }""",
    "sequences and optionals": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y, bool has)
        {
            s = SequenceConstruct(x, x)
            o = Optional(s)
            has = OptionalHasElement(o)
            u = OptionalGetElement(o)
            zero = Constant <value = int64 {0}> ()
            y = SequenceAt(u, zero)
        }""",
    "mixed types in one Pow": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, int64[2] n) => (float[2] y) { y = Pow(x, n) }""",
    "unchecked attribute of LayerNormalization": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x, float[3] s) => (float[2,3] y)
        { y = LayerNormalization <my_hint = 1> (x, s) }""",
    "attribute with two underscores": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { y = Relu <__hint = 1> (x) }""",
    "operator that was experimental": """
        <ir_version: 3, opset_import: ["" : 6]>
        g (float[2] x) => (float[2] y) { y = ScaledTanh <alpha = 1.0, beta = 2.0> (x) }""",
    "functions with inputs and results left out": """
        <ir_version: 9, opset_import: ["" : 17, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.outer <alpha = 0.5> (x) }
        <domain: "f", opset_import: ["" : 17, "f" : 1]>
        outer <alpha> (x) => (y) { h = f.inner <beta: float = @alpha> (x)
                                   y = Neg(h) }
        <domain: "f", opset_import: ["" : 17]>
        inner <beta: float = 1.0> (x, spare) => (y, unused)
        { y = LeakyRelu <alpha: float = @beta> (x)
          unused = Neg(y) }""",
}


@pytest.mark.parametrize("name", TRICKY)
def test_tricky_models(name):
    proto = onnx.parser.parse_model(TRICKY[name])
    onnx.checker.check_model(proto)
    verify(ir.from_proto(proto))
    # Inferred types are more for the verifier to be wrong about.
    verify(ir.from_proto(onnx.shape_inference.infer_shapes(proto)))


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models(path):
    verify(ir.load(path))
    verify(ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(path))))


def test_all_light_models_are_there():
    assert len(LIGHT) == 9


def test_every_node_test_of_onnx():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    refused = {}
    unread = {}
    for case in cases:
        for proto in (case.model, onnx.shape_inference.infer_shapes(case.model)):
            try:
                model = ir.from_proto(proto)
            except Exception as error:  # noqa: BLE001  # distinguished from refusals below
                unread[case.name] = str(error)
                continue
            try:
                verify(model)
            except VerificationError as error:
                refused[case.name] = error.problems
    assert refused == {}
    assert unread == {}
    assert len(cases) > 1000


def test_names_are_not_needed_for_nodes():
    proto = onnx.parser.parse_model(TRICKY["two levels of capture"])
    for node in proto.graph.node:
        node.name = ""
    verify(ir.from_proto(proto))


def test_deprecated_operator_is_let_through():
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1, 1, 2, 2}>
        { y = Upsample(x, s) }""")
    verify(model)


def test_default_of_an_input_may_have_symbolic_shape():
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) <float[3] x = {1, 2, 3}> { y = Neg(x) }""")
    verify(model)


def test_long_chain_needs_no_stack():
    value = first = ir.val("x", ir.DataType.FLOAT, [2])
    nodes = []
    for index in range(5000):
        nodes.append(ir.node("Neg", [value], name=f"n{index}"))
        value = nodes[-1].outputs[0]
    value.type, value.shape = first.type, first.shape
    graph = ir.Graph([first], [value], nodes=nodes, opset_imports={"": 17}, name="g")
    verify(ir.Model(graph, ir_version=8))


def test_deep_calls_need_no_stack():
    functions = []
    for index in range(3000):
        value = ir.val("v")
        callee = f"f{index + 1}" if index < 2999 else None
        node = ir.node(callee, [value], domain="d") if callee else ir.node("Neg", [value])
        imports = {"d": 1, "": 17}
        graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports=imports)
        functions.append(ir.Function("d", f"f{index}", graph=graph, attributes=()))
    x = ir.val("x", ir.DataType.FLOAT, [2])
    call = ir.node("f0", [x], domain="d")
    graph = ir.Graph([x], call.outputs, nodes=[call], opset_imports={"d": 1, "": 17}, name="g")
    verify(ir.Model(graph, ir_version=8, functions=functions))


def test_weights_are_not_read():
    def read() -> ir.TensorProtocol:
        raise AssertionError("a weight was read")

    lazy = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape([4]), name="w")
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }""")
    model.graph.initializers["w"].const_value = lazy
    verify(model)


def test_verify_changes_nothing():
    model = ir.from_onnx_text(TRICKY["functions with inputs and results left out"])
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    verify(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert np.all(model.graph.opset_imports == {"": 17, "f": 1})
