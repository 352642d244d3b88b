"""What `inline-if` puts in the place of an If."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from folding_kit import check_bits, fold, ops, parse, run

from narrowpass_constant_folding.inline_if import InlineIf


def model(then, condition=True, around="y = Abs(t)", inputs="float[4] x", outputs="float[4] y"):
    return parse(
        f"""g ({inputs}) => ({outputs}) {{ u = Exp(x) t = If(c)
        <then_branch = a () => (float[4] p) {then},
         else_branch = b () => (float[4] q) {{ q = Neg(x) }}> {around} }}""",
        initializers={"c": np.array(condition)},
    )


BODIES = [
    "{ p = Mul(x, u) }",
    "<float[1] k = {3}> { p = Mul(x, k) }",
    # a name of the graph around
    "{ u = Sqrt(x) p = Mul(x, u) }",
    "{ y = Sqrt(x) p = Mul(x, y) }",
    "{ p = Identity(u) }",
    "{ v = Neg(x) w = Exp(v) p = Add(v, w) }",
    """{ d = Greater(x, u) e = Cast <to = 9> (d) f = ReduceMax <keepdims = 0> (x) k = Greater(f, f)
       p = If(k) <then_branch = m () => (float[4] r) { v = Neg(x) r = Mul(v, u) },
                  else_branch = n () => (float[4] s) { v = Exp(x) s = Add(v, u) }> }""",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken_stands_in_its_place(body, condition):
    proto = model(body, condition)
    after, _, ctx = run(InlineIf(), proto)
    assert ctx.counters["inlined"] == 1
    assert "If" not in ops(after) or "m ()" in body
    check_bits(proto, after)
    folded, _, _ = fold(proto)
    check_bits(proto, folded)


def test_the_result_may_be_an_output():
    proto = model("{ p = Mul(x, u) }", around="y = Abs(u)", outputs="float[4] t, float[4] y")
    after, _, _ = fold(proto)
    assert [value.name for value in after.graph.output] == ["t", "y"]
    assert ops(after) == ["Exp", "Mul", "Abs"]
    check_bits(proto, after)


def test_one_value_may_be_two_results():
    proto = parse(
        """g (float[4] x) => (float[4] y, float[4] z) { y, z = If(c)
        <then_branch = a () => (float[4] p, float[4] r) { p = Neg(x) r = Identity(p) },
         else_branch = b () => (float[4] q, float[4] s) { q = Exp(x) s = Abs(x) }> }""",
        initializers={"c": np.array(True)},
    )
    after, _, _ = fold(proto)
    assert "If" not in ops(after)
    assert [value.name for value in after.graph.output] == ["y", "z"]
    check_bits(proto, after)


def test_both_branches_use_the_same_names():
    proto = model("{ v = Neg(x) p = Mul(v, v) }").graph.node[1]
    other = onnx.parser.parse_graph("b () => (float[4] p) { v = Exp(x) p = Add(v, v) }")
    proto.attribute[1].g.CopyFrom(other)
    whole = model("{ v = Neg(x) p = Mul(v, v) }")
    whole.graph.node[1].CopyFrom(proto)
    for condition in (True, False):
        whole.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(condition), "c"))
        after, _, _ = fold(whole)
        assert "If" not in ops(after)
        check_bits(whole, after)


def test_one_within_another():
    inner = """{ r = If(c) <then_branch = m () => (float[4] v) { v = Sqrt(x) },
                            else_branch = n () => (float[4] w) { w = Exp(x) }> p = Mul(r, u) }"""
    proto = model(inner)
    after, _, ctx = run(InlineIf(), proto)
    assert ctx.counters["inlined"] == 2
    assert "If" not in ops(after)
    check_bits(proto, after)


def test_in_the_body_of_a_loop_and_in_a_function():
    proto = parse(
        """g (float[4] x) => (float[4] y) { s = Loop(n, c, x)
        <body = l (int64 i, bool k, float[4] v) => (bool k2, float[4] w) {
            k2 = Identity(k)
            w = If(c) <then_branch = a () => (float[4] p) { p = Mul(v, x) },
                       else_branch = b () => (float[4] q) { q = Neg(v) }> }>
        y = local.f(s) }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) {
        k = Constant <value = bool {0}> ()
        w = If(k) <then_branch = a () => (float[4] p) { p = Neg(v) },
                   else_branch = b () => (float[4] q) <float[1] m = {2}> { q = Mul(v, m) }> }""",
        more=', "local" : 1',
        initializers={"n": np.array(3), "c": np.array(True)},
    )
    after, _, ctx = run(InlineIf(), proto)
    assert ctx.counters["inlined"] == 2
    assert "If" not in [node.op_type for node in after.functions[0].node]
    check_bits(proto, after)


def test_a_condition_that_may_change_stays():
    proto = model("{ p = Mul(x, u) }", inputs="float[4] x, bool c")
    assert "If" in ops(run(InlineIf(), proto)[0])
    proto = model("{ p = Mul(x, u) }")
    proto.graph.node[1].name = "here"
    assert "If" in ops(run(InlineIf(keep=("here",)), proto)[0])


def test_random_numbers_are_drawn_where_they_were():
    proto = model("{ r = RandomNormalLike(x) z = Sub(r, r) p = Add(z, u) }")
    after, _, _ = fold(proto)
    assert ops(after).count("RandomNormalLike") == 1
