"""Files whose declarations of values contradict the operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import assert_same_bits, ops, parse, run_onnxruntime

from narrowpass import Context, Observer, load_model
from narrowpass.framework.passes import run_checked
from narrowpass_constant_folding.passes.cse import Cse
from narrowpass_constant_folding.passes.drop_casts import DropCasts
from narrowpass_constant_folding.passes.eliminate_identity import EliminateIdentity
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.fold_constants import FoldConstants
from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.passes.merge_reshapes import MergeReshapes
from narrowpass_ir.io import serialize

NUMBERS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "seven": np.array([7, 3]),
    "ones": np.ones((7, 1), np.float32),
    "two": np.array(2),
    "yes": np.array(True),
    "many": np.ones((7, 3), bool),
    "ends": np.array([7]),
    "w": np.ones((3, 4), np.float32),
    "b": np.ones((1, 4), np.float32),
}
X = np.array([[0.5, -1, 2], [3, -4, 5]], np.float32)

# What `a`, which is Relu(x) of the shape [2, 3], is declared as: another size, rank or name.
WRONG = ["float[7, 3]", "float[7, 3, 1]", "float[]", "float[7, M]"]

BODIES = {
    "shape": ("a = Relu(x) y = Shape(a)", "int64[?]"),
    "size": ("a = Relu(x) y = Size(a)", "int64"),
    "part of a shape": ("a = Relu(x) s = Shape(a) y = Gather(s, zero)", "int64[?]"),
    "computed": (
        "a = Relu(x) s = Shape(a) t = Add(s, s) y = ReduceProd <keepdims = 0> (t)",
        "int64",
    ),
    "fill": ("a = Relu(x) s = Shape(a) y = ConstantOfShape(s)", "float[?, ?]"),
    "declared further on": ("a = Relu(x) c = Neg(a) d = Abs(c) y = Shape(d)", "int64[?]"),
    "reshape": ("a = Relu(x) s = Shape(a) f = Flatten(a) y = Reshape(f, s)", "float[?, ?]"),
    "mul": ("a = Relu(x) q = Slice(ones, zero, one) y = Mul(a, q)", "float[?, ?]"),
    "transpose": ("a = Relu(x) b1 = Transpose(a) y = Transpose(b1)", "float[?, ?]"),
    "squeeze": ("a = Relu(x) u = Unsqueeze(a, zero) y = Squeeze(u, zero)", "float[?, ?]"),
    "slice": ("a = Relu(x) y = Slice(a, zero, ends)", "float[?, ?]"),
    "bias": ("a = Relu(x) m = MatMul(a, w) y = Add(m, b)", "float[?, ?]"),
    "where": ("a = Relu(x) c = Neg(a) y = Where(yes, a, c)", "float[?, ?]"),
    "split": (
        "a = Relu(x) q = SplitToSequence <axis = 0, keepdims = 0> (a) y = SequenceAt(q, one1)",
        "float[?]",
    ),
    "branch": (
        (
            "a = Relu(x) k = ReduceMax <keepdims = 0> (x) c = Greater(k, k) y = If(c)"
            " <then_branch = t () => (int64[?] p) { p = Shape(a) },"
            " else_branch = e () => (int64[?] q) { r = Neg(a) q = Shape(r) }>"
        ),
        "int64[?]",
    ),
}


def declared(body, output, wrong, inputs="float[2, 3] x"):
    text = f"g ({inputs}) => ({output} y) <{wrong}> {{ {body} }}"
    return parse(text, initializers={**NUMBERS, "one1": np.array(1)})


def after(pass_, proto):
    """Run a pass; ONNX's checker is not asked, which refuses such models."""
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    result = run_checked(pass_, model, Context(observer=Observer(strict=True)))
    return serialize(result.model, lambda scope, value: None), result.model


def check(proto, pass_=None, feeds=None):
    folded, _ = after(pass_ or Fold(), proto)
    assert folded.graph.output == proto.graph.output
    feeds = feeds or {"x": X}
    for got, due in zip(run_onnxruntime(folded, feeds), run_onnxruntime(proto, feeds), strict=True):
        assert_same_bits(got, due)
    return folded


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", BODIES)
def test_a_wrong_shape_between_nodes_is_not_believed(name, wrong):
    body, output = BODIES[name]
    check(declared(body, output, f"{wrong} a"))


@pytest.mark.parametrize("wrong", ["float[7, 3] c", "float[7, 3] d", "float[7, 3] c, float[1] d"])
def test_a_shape_inferred_from_a_wrong_one_is_not_believed(wrong):
    proto = declared("a = Relu(x) c = Neg(a) d = Abs(c) y = Shape(d)", "int64[?]", wrong)
    assert ops(check(proto)) == []


PASSES = [FoldConstants(), EliminateIdentity(), MergeReshapes(), Cse(), DropCasts()]


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
@pytest.mark.parametrize("name", BODIES)
def test_passes_on_their_own_do_not_believe_it(name, pass_):
    body, output = BODIES[name]
    check(declared(body, output, "float[7, 3] a"), pass_)


def test_infer_shapes_leaves_it_and_infers_nothing_from_it():
    proto = declared("a = Relu(x) c = Neg(a) y = Shape(c)", "int64[?]", "float[7, 3] a")
    _, model = after(InferShapes(), proto)
    shapes = {v.name: list(v.shape) for node in model.graph for v in node.outputs}
    assert shapes["a"] == [7, 3]
    assert shapes["c"] == [2, 3]
    check(serialize(model, lambda scope, value: None))


def test_an_output_that_is_declared_wrongly_stays_so_and_is_not_believed():
    text = "g (float[2, 3] x) => (float[7, 3] y, int64[?] s) { y = Relu(x) s = Shape(y) }"
    folded = check(parse(text))
    assert ops(folded) == ["Relu"]


@pytest.mark.parametrize("body", ["y = Neg(k)", "y = Constant <value_floats = [1.0, 2.0]> ()"])
def test_a_constant_output_that_is_declared_wrongly_is_left_with_its_node(body):
    proto = parse(
        f"g (float[2] x) => (float[2] z, float[3] y) {{ z = Abs(x) {body} }}",
        initializers={"k": np.array([1, 2], np.float32)},
    )
    folded, _ = after(Fold(), proto)
    feeds = {"x": np.array([1, -2], np.float32)}
    for got, due in zip(run_onnxruntime(folded, feeds), run_onnxruntime(proto, feeds), strict=True):
        assert_same_bits(got, due)


def test_names_of_dimensions_between_nodes_are_not_believed():
    # As if both had N rows; x may have others than v.
    proto = parse(
        "g (float[N, 3] x, float[M, 3] v) => (int64[?] y) <float[N, 3] a, float[N, 3] b> {"
        " a = Neg(x) b = Neg(v) s = Shape(a) t = Shape(b) y = Sub(s, t) }"
    )
    feeds = {"x": np.ones((2, 3), np.float32), "v": np.ones((5, 3), np.float32)}
    check(proto, feeds=feeds)


def test_a_name_within_branches_is_not_believed():
    proto = parse(
        """g (float[N] x, bool c) => (int64[?] y, int64[?] z) { t = If(c)
        <then_branch = a () => (float[N] p) { p = Concat <axis = 0> (x, x) },
         else_branch = b () => (float[N] q) { q = Neg(x) }> y = Shape(t) z = Shape(x) }"""
    )
    for c in (True, False):
        check(proto, feeds={"x": np.ones(3, np.float32), "c": np.array(c)})


def test_sizes_of_inputs_of_bodies_are_not_believed():
    proto = parse(
        """g (float[1] x) => (float[?] y, int64[?, ?] z) { y, z = Loop(n, , x)
        <body = l (int64 i, bool f, float[1] v) => (bool g, float[1] w, int64[1] s) {
            g = Identity(f) w = Concat <axis = 0> (v, v) s = Shape(v) }> }""",
        initializers={"n": np.array(3)},
    )
    folded, _ = after(Fold(), proto)
    assert ops(folded) == ["Loop"]
    body = folded.graph.node[0].attribute[0].g
    assert "Shape" in [node.op_type for node in body.node]


def test_what_a_function_declares_within_is_not_believed():
    proto = parse(
        """g (float[2, 3] x) => (int64[?] y, int64[?] z) <float[7, 3] t> {
        y, t = local.f(x) z = Shape(t) }
        <opset_import: ["" : 17], domain: "local"> f (v) => (s, a) <float[7, 3] a> {
            a = Relu(v) s = Shape(a) }""",
        more=', "local" : 1',
        ir_version=10,
    )
    feeds = {"x": X}
    folded, _ = after(Fold(), proto)
    for got in run_onnxruntime(folded, feeds):
        assert got.tolist() == [2, 3]
    # ONNX's inference of the body infers the call's result.
    assert ops(folded) == ["f"]


def test_a_wrong_element_type_does_not_drop_a_cast():
    proto = parse(
        "g (float[2] x) => (float[2] y) <float[2] a> {"
        " a = Cast <to = 7> (x) y = Cast <to = 1> (a) }"
    )
    folded, _ = after(DropCasts(), proto)
    (got,) = run_onnxruntime_untyped(folded, {"x": np.array([1.5, -2.5], np.float32)})
    assert got.tolist() == [1, -2]


def run_onnxruntime_untyped(proto, feeds):
    """Run without the declarations, for whose element types onnxruntime refuses a model."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    del copy.graph.value_info[:]
    return run_onnxruntime(copy, feeds)


def test_the_report_says_what_contradicts():
    proto = declared("a = Relu(x) y = Shape(a)", "int64[?]", "float[7, 3] a")
    model = ir.from_proto(proto)
    ctx = Context()
    Fold().run(model, ctx)
    assert ctx.counters["contradictions"] == 1
    (reason,) = [d.reason for d in ctx.decisions if d.decision == "contradictions"]
    assert "[7, 3] is declared, [2, 3] is inferred" in reason


def test_a_loaded_file_keeps_what_it_declares(tmp_path):
    proto = declared("a = Relu(x) y = Neg(a)", "float[?, ?]", "float[7, 3] a")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    model = load_model(path)
    run_checked(Fold(), model, Context(observer=Observer(strict=True)))
    assert serialize(model, lambda scope, value: None).graph.value_info == proto.graph.value_info
