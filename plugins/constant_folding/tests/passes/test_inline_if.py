"""What `inline-if` puts in the place of an If."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from folding_kit import check_bits, fold, ops, parse, run, run_onnxruntime

from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.inline_if import InlineIf


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
def test_the_chosen_branch_replaces_the_if(body, condition):
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


def test_nested_ifs():
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


def named_twice():
    """Two Ifs with two results each; nodes of all branches, and of graphs within, have one name."""
    branch = "{{ [n] {p} = {op}(x) [m] {r} = Identity({p}) }}"

    def conditional(number):
        first = branch.format(p=f"p{number}", r=f"r{number}", op="Neg")
        second = branch.format(p=f"q{number}", r=f"s{number}", op="Exp")
        return (
            f"[if{number}] a{number}, b{number} = If(c) "
            f"<then_branch = t () => (float[4] p{number}, float[4] r{number}) {first}, "
            f"else_branch = e () => (float[4] q{number}, float[4] s{number}) {second}>"
        )

    return parse(
        f"g (float[4] x) => (float[4] y, float[4] b1, float[4] b2, float[4] a1, float[4] a2) "
        f"{{ {conditional(1)} {conditional(2)} [n] y = Add(a1, a2) }}",
        initializers={"c": np.array(True)},
    )


def node_names(proto):
    return [node.name for node in proto.graph.node if node.name]


@pytest.mark.parametrize("pass_", [InlineIf(), Fold()])
def test_nodes_of_branches_get_names_of_their_own(pass_):
    proto = named_twice()
    after, _, _ = run(pass_, proto)
    assert "If" not in ops(after)
    assert len(set(node_names(after))) == len(node_names(after)) > 0
    feeds = {"x": np.array([0.5, -1, 2, 3], np.float32)}
    for got, due in zip(run_onnxruntime(after, feeds), run_onnxruntime(proto, feeds), strict=True):
        np.testing.assert_array_equal(got, due)


def test_nodes_within_nested_branches_get_names_of_their_own():
    inner = (
        "If(k) <then_branch = m () => (float[4] {r}) {{ [n] {r} = Neg(x) }},"
        " else_branch = o () => (float[4] {s}) {{ [n] {s} = Exp(x) }}>"
    )
    text = "g (float[4] x, bool k) => (float[4] y) {"
    for number in (1, 2):
        body = inner.format(r=f"r{number}", s=f"s{number}")
        text += (
            f" [i] t{number} = If(c) <then_branch = a () => (float[4] p{number})"
            f" {{ [n] p{number} = {body} }},"
            f" else_branch = b () => (float[4] q{number}) {{ q{number} = Abs(x) }}>"
        )
    # Its own two nodes of one name are refused before, too: names of the model stay its own.
    proto = parse(text + " y = Add(t1, t2) }", initializers={"c": np.array(True)})
    proto.graph.node[1].name = "j"
    after, _, _ = fold(proto)
    assert ops(after) == ["If", "If", "Add"]
    for k in (True, False):
        feeds = {"x": np.array([0.5, -1, 2, 3], np.float32), "k": np.array(k)}
        (got,), (due,) = run_onnxruntime(after, feeds), run_onnxruntime(proto, feeds)
        np.testing.assert_array_equal(got, due)


def test_constants_that_become_nodes_get_unique_names():
    # Below IR version 4 a folded value is a Constant node; `k` is the name of a node already.
    proto = parse(
        "g (float[2] x) => (float[2] y) { a = Constant <value_ints = [1, 2]> ()"
        " k = Cast <to = 1> (a) [k] b = Neg(x) y = Mul(b, k) }",
        ir_version=3,
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Neg", "Constant", "Mul"] or ops(after) == ["Constant", "Neg", "Mul"]
    assert len(set(node_names(after))) == len(node_names(after))
    feeds = {"x": np.array([0.5, -1], np.float32)}
    np.testing.assert_array_equal(run_onnxruntime(after, feeds)[0], -feeds["x"] * [1, 2])
