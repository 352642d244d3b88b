"""What `cse` computes once."""

from __future__ import annotations

import numpy as np
import pytest
from folding_kit import check_bits, fold, ops, parse, run

from narrowpass_constant_folding.passes.cse import Cse
from narrowpass_constant_folding.passes.infer_shapes import InferShapes


def test_equal_nodes_merge():
    proto = parse(
        "g (float[N] x, float[N] v) => (float[N] y) {"
        " a = Exp(x) b = Exp(x) c = Add(a, v) d = Add(v, b) y = Mul(c, d) }"
    )
    after, _, ctx = run(Cse(), proto)
    assert ops(after) == ["Exp", "Add", "Mul"]
    assert ctx.counters["merged"] == 2
    check_bits(proto, after)


@pytest.mark.parametrize(
    "body",
    [
        "a = Sub(x, v) b = Sub(v, x)",
        "a = LeakyRelu <alpha = 0.1> (x) b = LeakyRelu <alpha = 0.2> (x)",
        "a = RandomNormalLike <seed = 1.0> (x) b = RandomNormalLike <seed = 1.0> (x)",
        "a = Bernoulli(x) b = Bernoulli(x)",
        "a, m = Dropout(x, r, t) b, n = Dropout(x, r, t)",
        "a = Elu <alpha = 0.0> (x) b = Elu <alpha = -0.0> (x)",
        # equal for numbers, and not by sign and NaN
        "a = Max(x, v) b = Max(v, x)",
    ],
)
def test_different_nodes_do_not_merge(body):
    proto = parse(
        f"g (float[4] x, float[4] v) => (float[4] y) {{ {body} y = Add(a, b) }}",
        initializers={"r": np.float32(0.5), "t": np.array(True)} if "Dropout" in body else {},
    )
    assert ops(run(Cse(), proto)[0]) == ops(proto)


def test_two_outputs_of_the_graph_keep_their_names():
    proto = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Exp(x) z = Exp(x) }")
    after, _, _ = fold(proto)
    assert [value.name for value in after.graph.output] == ["y", "z"]
    assert ops(after) == ["Exp", "Exp"]


def test_the_first_node_may_produce_an_output():
    proto = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Exp(x) b = Exp(x) z = Neg(b) }")
    after, _, _ = fold(proto)
    assert ops(after) == ["Exp", "Neg"]
    check_bits(proto, after)


def test_constants_are_compared_by_type_shape_and_bytes():
    proto = parse(
        """g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) {
        a = Constant <value = float[1] {0.0}> () b = Constant <value = float[1] {-0.0}> ()
        c = Constant <value = float {0.0}> () d = Constant <value = float[1] {0.0}> ()
        e = Mul(v, a) f = Mul(v, b) g = Mul(v, c) h = Mul(v, d) w = Sum(e, f, g, h) }""",
        more=', "local" : 1',
    )
    after, _, ctx = run(Cse(), proto)
    assert ctx.counters["merged"] == 2  # d with a, and what reads them
    check_bits(proto, after)


def test_integers_that_follow_from_shapes_in_different_ways():
    proto = parse(
        """g (float[N, 4] x, float[N, 8] v) => (float[?, ?] y, float[?, ?] z) {
        s = Shape(x) n = Gather(s, i) nu = Unsqueeze(n, o) p = Concat <axis = 0> (nu, k)
        t = Shape(v) m = Slice(t, o, l) q = Concat <axis = 0> (m, k)
        y = Expand(f, p) z = Expand(f, q) }""",
        initializers={
            "i": np.array(0),
            "o": np.array([0]),
            "l": np.array([1]),
            "k": np.array([3]),
            "f": np.float32(2),
        },
    )
    after, _, _ = run(Cse(), run(InferShapes(), proto)[0])
    # [N, 3] is computed once, and so is what is expanded to it
    assert ops(after).count("Concat") == 1
    check_bits(proto, after, N=5)


def test_unnamed_dimensions_are_not_equal():
    proto = parse(
        "g (float[?] x, float[?] v) => (int64[1] y, int64[1] z)"
        "{ a = Shape(x) b = Shape(v) y = Neg(a) z = Neg(b) }"
    )
    assert ops(run(Cse(), proto)[0]) == ["Shape", "Shape", "Neg", "Neg"]


def test_nodes_of_a_graph_and_a_branch_do_not_merge():
    proto = parse(
        """g (float[4] x, bool c) => (float[4] y) { a = Exp(x)
        t = If(c) <then_branch = t () => (float[4] p) { u = Exp(x) v = Exp(x) p = Add(u, v) },
                   else_branch = e () => (float[4] q) { q = Neg(x) }>
        y = Add(a, t) }"""
    )
    after, _, ctx = run(Cse(), proto)
    assert ctx.counters["merged"] == 1
    check_bits(proto, after)


def test_a_kept_node_is_not_merged():
    proto = parse("g (float[N] x) => (float[N] y) { a = Exp(x) [k] b = Exp(x) y = Mul(a, b) }")
    assert ops(run(Cse(keep=("k",)), proto)[0]) == ["Exp", "Exp", "Mul"]


def test_quantization_nodes_do_not_merge():
    proto = parse(
        "g (int8[N] x) => (float[N] y) { a = DequantizeLinear(x, s) b = DequantizeLinear(x, s)"
        " y = Mul(a, b) }",
        initializers={"s": np.float32(0.5)},
    )
    assert ops(run(Cse(), proto)[0]) == ops(proto)
