"""Constants that float16 rounds to zero or infinity, on many ways to what depends on them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from corpus_kit import Case, X
from fp16_kit import compare, nodes_of
from onnx.reference import ReferenceEvaluator

import narrowpass

F = np.float32
ROUTES = {
    "direct": "c = Identity(t)",
    "expand": "c = Expand(t, n)",
    "where": "kr = Greater(h, z) c = Where(kr, t, t)",
    "concat": "c0, c1 = Split<axis=0, num_outputs=2>(t) c = Concat<axis=0>(c0, c1)",
    "if": (
        "c = If(yes) <then_branch = p () => (float[8] q) { q = Identity(t) }, else_branch "
        "= r () => (float[8] s) { s = Identity(t) }>"
    ),
    "loop": (
        "c = Loop(two, yes, t) <body = kk (int64 i, bool g, float[8] a) => (bool g2, "
        "float[8] d) { g2 = Identity(g) d = Neg(a) }>"
    ),
    "func": "c = d.G(t)",
    "mul": "c = Mul(t, o)",
    "add0": "c0 = Sub(h, h) c = Add(c0, t)",
    "max": "c0 = Sub(h, h) c1 = Abs(t) c = Max(c0, c1)",
    "constantnode": "c = Constant<value_floats = [%s]>()",
    "mixed": "c = Mul(tm, o)",
    "tanh": "c = Tanh(t)",
    "gather": "c = Gather(t, idx)",
    "cast": "c0 = Cast<to=11>(t) c = Cast<to=1>(c0)",
    "double": "c = Cast<to=1>(td)",
    "small": "c = Mul(sm, sm)",
}
"""Nodes that compute `c` from the constants `t`; in some, from others: `tm`, `td`, `sm`."""

TINY = {
    "sign": "e = Sign(c)",
    "recip": "e0 = Reciprocal(c) e = Sign(e0)",
    "div": "e0 = Div(o, c) e = Mul(e0, t9)",
    "log": "e0 = Abs(c) e = Log(e0)",
    "greater": "k = Greater(c, z) e = Where(k, o, z)",
    "less": "k = Less(c, z) e = Where(k, o, z)",
    "equal": "k = Equal(c, z) e = Where(k, o, z)",
    "ge": "k = GreaterOrEqual(z, c) e = Where(k, o, z)",
    "bool": "k = Cast<to=9>(c) e = Where(k, o, z)",
    "not": "k0 = Cast<to=9>(c) k = Not(k0) e = Where(k, o, z)",
    "sqrt": "e0 = Abs(c) e1 = Sqrt(e0) e = Mul(e1, big)",
    "pow": "e0 = Abs(c) e = Pow(e0, tenth)",
    "ceil": "e = Ceil(c)",
    "floor": "e = Floor(c)",
    "maxlog": "e0 = Abs(c) e1 = Max(e0, t9) e = Log(e1)",
    "minsign": "e0 = Min(c, o) e = Sign(e0)",
    "rsqrt": "e0 = Abs(c) e1 = Sqrt(e0) e2 = Reciprocal(e1) e = Mul(e2, t9)",
    "argmax": "e0 = ArgMax<axis=-1>(c) e = Cast<to=1>(e0)",
    "relu": "e0 = Relu(c) e = Sign(e0)",
    "isnan": "e0 = Div(c, c) e = Abs(e0)",
    "prod": "e0 = ReduceProd<keepdims=0>(c) e1 = Sign(e0) e = Mul(o, e1)",
    "reducemax": "e0 = ReduceMax<keepdims=0>(c) e = Sign(e0)",
    "mod": "e = Mod<fmod=1>(o, c)",
    "normalized": "q = Mul(c, c) e0 = ReduceSum<keepdims=0>(q) e1 = Sqrt(e0) e = Div(c, e1)",
    "lp": "e = LpNormalization(c)",
    "if": (
        "k = Greater(c, z) k1 = Cast<to=6>(k) k2 = ReduceMax<keepdims=0>(k1) k3 = "
        "Cast<to=9>(k2) e = If(k3) <then_branch = pp () => (float[8] qq) { qq = "
        "Identity(o) }, else_branch = rr () => (float[8] ss) { ss = Neg(o) }>"
    ),
}
"""Nodes that compute `e` from `c`, and depend on whether it is zero."""

LARGE = {
    "sign": "e = Sign(c)",
    "clip": "e = Clip(c, z, u)",
    "min": "e = Min(c, o)",
    "soft": "e0 = Add(h, c) e = Softmax(e0)",
    "recip": "e0 = Reciprocal(c) e = Mul(e0, huge)",
    "tanh": "e = Tanh(c)",
    "sig": "e = Sigmoid(c)",
    "mulsmall": "e = Mul(c, t9)",
    "less": "k = Less(c, huge) e = Where(k, o, z)",
    "sub": "e0 = Add(h, c) e = Sub(e0, c)",
    "norm": "q = Mul(c, c) e0 = ReduceMean<keepdims=0>(q) e1 = Sqrt(e0) e = Div(c, e1)",
    "int": "k = Cast<to=7>(c) k2 = Mod(k, seven) k3 = Abs(k2) e = Gather(o8, k3)",
    "isinf": "k = IsInf(c) e = Where(k, z, o)",
    "ln": "e = LayerNormalization(c, o)",
    "relu": "e0 = Relu(c) e = Mul(e0, t9)",
    "mean": "e0 = ReduceMean<keepdims=0>(c) e1 = Mul(e0, t9) e = Mul(o, e1)",
    "atan": "e = Atan(c)",
    "exp": "e0 = Abs(c) e1 = Neg(e0) e = Exp(e1)",
    "hs": "e0 = HardSigmoid(c) e = Mul(e0, o)",
}
"""Nodes that compute `e`, of ordinary size, from `c`."""

COMMON = {
    "n": np.array([8]),
    "z": F(0),
    "o": np.ones(8, F),
    "yes": np.array(True),
    "two": np.array(2),
    "idx": np.arange(8),
    "tenth": F(0.1),
    "big": F(1000),
    "u": F(1),
    "huge": F(1e5),
    "seven": np.array(7),
    "o8": np.arange(8, dtype=F) / 8,
}


def constants(number, factor, scale):
    mixed = F([number, -number, 1, 1, 1, 1, -1, 1])
    signs = np.array([number, -number] * 4)
    return COMMON | {
        "t": F(signs),
        "td": signs,
        "tm": mixed,
        "sm": F([factor] * 8),
        "t9": F([scale]),
    }


def disagree(route, end, given):
    """Return why the rewritten model is wrong; empty if it is right."""
    numbers = ",".join(str(number) for number in given["td"])
    way = ROUTES[route] % numbers if "%s" in ROUTES[route] else ROUTES[route]
    body = f"h = MatMul(x, w) {way} {end} f = Mul(h, e) y0 = MatMul(f, v) y = Identity(y0)"
    if "d.G" in way:
        body += ' | <domain: "d", opset_import: ["": 20]> G (a) => (q) { q = Neg(a) }'
    read = {
        k
        for k in given
        if f" {k}," in body or f" {k})" in body or f"({k}," in body or f"({k})" in body
    }
    case = Case(body, 0, constants={key: given[key] for key in read}, text="fp16")
    model = case.model()
    narrowed = ir.to_proto(case.build(model).methods["main"])
    onnx.checker.check_model(narrowed, full_check=True)
    assert sum(node.op_type == "MatMul" for node in nodes_of(narrowed.graph)) == 2
    with np.errstate(all="ignore"):
        right, got = (ReferenceEvaluator(each).run(None, {"x": X}) for each in (model, narrowed))
    try:
        compare(got, right, 2e-2)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_numbers_that_are_zero_in_float16(route):
    given = constants(1e-9, 1e-4, 1e-9)
    found = {name: disagree(route, end, given) for name, end in TINY.items()}
    assert not {name: text for name, text in found.items() if text}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_numbers_that_are_infinite_in_float16(route):
    given = constants(1e5, -3e2, 1e-5)
    found = {name: disagree(route, end, given) for name, end in LARGE.items()}
    assert not {name: text for name, text in found.items() if text}


def test_a_tiny_element_of_a_bias_is_rounding():
    """What a matmul rounds is larger than one element of its bias."""
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(8).astype(F)
    bias[3] = 1e-9
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,8] x) => (float[2,8] y) {
        a = MatMul(x, w) b = Add(a, c) d = Relu(b) e = Sign(d) f = Tanh(e) y = Mul(f, d) }""")
    for key, array in {"w": rng.standard_normal((8, 8)).astype(F), "c": bias}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    methods = narrowpass.build(ir.from_proto(model), "fp16", target="reference").methods
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(methods["main"]))
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    found = [types[n.output[0]] for n in proto.graph.node if n.op_type in ("Add", "Relu", "Sign")]
    assert found == [onnx.TensorProto.FLOAT16] * 3
