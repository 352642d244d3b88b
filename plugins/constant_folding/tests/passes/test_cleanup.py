"""Identities and dead code, in graphs, subgraphs and functions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from folding_kit import check_onnxruntime, check_reference, fold, ops, parse

from narrowpass import Context
from narrowpass_constant_folding.passes.fold import Fold

X = {"x": np.array([1.0, 2.0, 3.0, 4.0], np.float32)}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("(float[4] y) { a = Identity(x)  y = Neg(a) }", ["Neg"]),
        ("(float[4] y) { a = Neg(x)  y = Identity(a) }", ["Neg"]),
        ("(float[4] y) { a = Neg(x)  b = Identity(a)  c = Identity(b)  y = Identity(c) }", ["Neg"]),
        ("(float[4] y) { y = Identity(x) }", ["Identity"]),
        ("(float[4] y) { a = Identity(x)  y = Identity(a) }", ["Identity"]),
        (
            "(float[4] y, float[4] z) { a = Neg(x)  y = Identity(a)  z = Identity(a) }",
            ["Neg", "Identity"],
        ),
        ("(float[4] y, float[4] z) { y = Neg(x)  z = Identity(y) }", ["Neg", "Identity"]),
        ("(float[4] z, float[4] y) { y = Neg(x)  z = Identity(y) }", ["Neg", "Identity"]),
        ("(float[4] y, float[4] z) { y = Identity(x)  z = Identity(x) }", ["Identity", "Identity"]),
        (
            "(float[4] y, float[4] z) { a = Neg(x)  y = Identity(a)  z = Exp(a) }",
            ["Neg", "Exp"],
        ),
    ],
)
def test_identities(text, left):
    proto = parse("g (float[4] x) => " + text)
    after, _, _ = fold(proto)
    assert ops(after) == left
    check_reference(proto, after, X)
    check_onnxruntime(proto, after, X)


def test_an_output_keeps_what_it_declares():
    proto = parse("g (float[4] x) => (float[N] y) { a = Neg(x)  y = Identity(a) }")
    after, _, _ = fold(proto)
    assert after.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_a_weight_that_is_shared_with_an_output_is_not_stored_twice():
    proto = parse(
        "g (float[1024] x) => (float[1024] y, float[1024] z) { y = Identity(w)  z = Add(x, w) }",
        initializers={"w": np.ones(1024, np.float32)},
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["Identity", "Add"]
    assert ctx.counters["too-large"] == 1


IF = """g (float[4] x, bool c) => (float[4] y) <float[4] k = {{1, 2, 3, 4}}> {{
    u = Identity(x)
    y = If(c) <then_branch = t () => (float[4] p) {{ {then} }},
               else_branch = e () => (float[4] q) {{ {other} }}> }}"""


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize(
    ("then", "other"),
    [
        ("p = Identity(u)", "q = Neg(u)"),
        ("a = Identity(u)  p = Exp(a)", "b = Neg(u)  q = Identity(b)"),
        ("a = Neg(k)  p = Add(u, a)", "q = Neg(k)"),
        ("p = Constant <value = float[4] {5, 6, 7, 8}> ()", "a = Exp(k)  d = Sin(x)  q = Neg(a)"),
        ("a = Shape(u)  b = Cast <to = 1> (a)  p = Mul(u, b)", "q = Identity(k)"),
    ],
)
def test_branches(then, other, condition):
    proto = parse(IF.format(then=then, other=other))
    after, _, _ = fold(proto)
    feeds = {**X, "c": np.array(condition)}
    assert ops(after) == ["If"]
    check_reference(proto, after, feeds)
    check_onnxruntime(proto, after, feeds)


LOOP = """g (float[4] x, int64 n, bool c) => (float[4] y, float[?, 4] s) {{
    u = Identity(x)
    y, s = Loop(n, c, u) <body = b (int64 i, bool ci, float[4] v)
        => (bool co, float[4] vo, float[4] so) {{ {body} }}> }}"""


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    "body",
    [
        "co = Identity(ci)  vo = Identity(v)  so = Neg(v)",
        "co = Identity(ci)  vo = Neg(v)  so = Identity(vo)",
        "co = Identity(ci)  a = Neg(v)  vo = Identity(a)  so = Identity(a)",
        (
            "co = Constant <value = bool {1}> ()  k = Constant <value_float = 2.0> ()"
            " l = Neg(k)  vo = Mul(v, l)  so = Add(u, l)"
        ),
        "co = Identity(ci)  vo = Neg(v)  so = Constant <value = float[4] {1, 2, 3, 4}> ()",
        "a = Identity(ci)  co = Identity(a)  d = Exp(v)  vo = Add(v, u)  so = Neg(vo)",
    ],
)
def test_loop_bodies(body, count):
    proto = parse(LOOP.format(body=body))
    after, _, _ = fold(proto)
    feeds = {**X, "n": np.array(count), "c": np.array(True)}
    if count:  # onnx's evaluator cannot stack the outputs of no iteration
        check_reference(proto, after, feeds)
    check_onnxruntime(proto, after, feeds)


def test_a_scan_body():
    proto = parse(
        """g (float[4] x, float[3, 4] r) => (float[4] y, float[3, 4] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] e)
            => (float[4] so, float[4] zo) { k = Constant <value_float = 2.0> ()  m = Neg(k)
            a = Mul(s, m)  so = Identity(a)  f = Identity(e)  zo = Add(a, f) }> (x, r) }"""
    )
    after, _, _ = fold(proto)
    feeds = {**X, "r": np.arange(12, dtype=np.float32).reshape(3, 4)}
    check_reference(proto, after, feeds)
    check_onnxruntime(proto, after, feeds)


def test_a_name_that_two_scopes_define_is_not_captured():
    # Within the branch, `u` is another value; a use of the outer one must not move there.
    proto = parse(
        """g (float[4] x, bool c) => (float[4] y) { u = Neg(x)  v = Identity(u)
        y = If(c) <then_branch = t () => (float[4] p) { u = Exp(x)  p = Add(u, v) },
                   else_branch = e () => (float[4] q) { q = Neg(v) }> }"""
    )
    model = ir.from_proto(proto)
    Fold().run(model, Context())
    after = ir.to_proto(model)
    for condition in (True, False):
        check_reference(proto, after, {**X, "c": np.array(condition)})


def test_dead_code_goes_with_all_that_feeds_only_it():
    proto = parse(
        """g (float[4] x, bool c, float[4] unused) => (float[4] y) <float[4] w = {1, 1, 1, 1}> {
        a = Add(x, w)  b = Exp(a)
        d = If(c) <then_branch = t () => (float[4] p) { p = Neg(b) },
                   else_branch = e () => (float[4] q) { q = Exp(b) }>
        f = local.f(d)  y = Neg(x) }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) { w = local.g(v) }
        <domain: "local", opset_import: ["" : 17]> g (v) => (w) { w = Neg(v) }""",
        more=', "local" : 1',
    )
    model = ir.from_proto(proto)
    ctx = Context()
    Fold().run(model, ctx)
    after = ir.to_proto(model)
    assert ops(after) == ["Neg"]
    assert not after.functions
    assert not after.graph.initializer
    assert [value.name for value in after.graph.input] == ["x", "c", "unused"]
    assert {item.domain for item in after.opset_import} == {"", "local"}
    assert ctx.counters["dead-nodes"] == 4
    assert ctx.counters["dead-initializers"] == 1
    assert ctx.counters["dead-functions"] == 2


def test_an_unused_initializer_that_is_an_input_stays():
    proto = parse(
        "g (float[4] x, float[4] a) => (float[4] y) { y = Neg(x) }",
        initializers={"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)},
    )
    after, _, _ = fold(proto)
    assert [item.name for item in after.graph.initializer] == ["a"]


def test_unused_optional_outputs_do_no_harm():
    proto = parse(
        "g (float[4] x) => (float[2] y) <float[4] a = {3, 1, 2, 4}, int64[1] k = {2}>"
        "{ v, i = TopK(a, k)  t, j = TopK(x, k)  y = Add(v, t) }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["TopK", "Add"]
    check_reference(proto, after, X)
