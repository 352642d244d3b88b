"""What `infer-shapes` says of values, against what comes out when the models run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import feeds_of, fold, parse, run
from hypothesis import given, settings
from onnx.reference import ReferenceEvaluator
from onnx_cases_kit import node_cases

from narrowpass import Context
from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.shapes.operators import Operators
from narrowpass_constant_folding.shapes.types import type_of
from narrowpass_constant_folding.shapes.values import ShapeValues
from narrowpass_testing.strategies import models


def inferred(proto):
    """Return the shapes of all values after the pass, by name."""
    _, model, _ = run(InferShapes(), proto)
    values = {value.name: value for node in model.graph for value in node.outputs}
    return {name: type_of(value) for name, value in values.items()}


def check_against_runs(proto, model, sizes):
    """Run the model, all values kept, and compare their types and shapes with what was inferred."""
    types = {v.name: type_of(v) for node in model.graph for v in node.outputs if v.name}
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    names = [name for name in types if name not in {v.name for v in proto.graph.output}]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    evaluator = ReferenceEvaluator(whole)
    for size in sizes:
        feeds = feeds_of(proto, special=False, **size)
        results = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        for name, result in results.items():
            check_type(name, types[name], result, size)


def check_type(name, type_, result, sizes=None):
    if not isinstance(result, np.ndarray):
        return
    if type_.dtype is not None and type_.dtype != ir.DataType.STRING:
        assert type_.dtype.numpy() == result.dtype, name
    if type_.dims is None:
        return
    assert len(type_.dims) == result.ndim, name
    for dim, actual in zip(type_.dims, result.shape, strict=True):
        due = (sizes or {}).get(dim, actual) if isinstance(dim, str) else dim
        assert due in (None, actual), (name, type_.dims, result.shape)


PARTIAL = [
    (
        (
            "s = Shape(x) v = Gather(s, one) u = Unsqueeze(v, zeros) t = Concat <axis = 0> "
            "(u, k) y = Expand(f, t)"
        ),
        ("S", 7),
    ),
    (
        "s = Shape(x) v = Slice(s, zeros, twos) t = Concat <axis = 0> (v, k) y = Expand(f, t)",
        ("N", "S", 7),
    ),
    ("s = Shape <start = 1> (x) y = ConstantOfShape(s)", ("S", 12)),
    (
        "t = Concat <axis = 0> (zeros, zeros, k, minus) e = Expand(x, l) y = Reshape(x, h)",
        ("N", "S", 3, 4),
    ),
    (
        (
            "s = Shape(x) n = Gather(s, zero) m = Gather(s, one) p = Mul(n, m) u = "
            "Unsqueeze(p, zeros) t = Concat <axis = 0> (u, minus) y = Reshape(x, t)"
        ),
        (None, 12),
    ),
    ("s = Shape(x) m = Gather(s, one) y = Range(zero, m, one)", ("S",)),
    ("z = Size(x) u = Unsqueeze(z, zeros) y = Reshape(x, u)", (None,)),
    (
        (
            "s = Shape(x) a = Slice(s, zeros, ones) b = Slice(s, ones, twos) q = Equal(a, "
            "minus) p = Where(q, ones, a) t = Concat <axis = 0> (p, b) y = Expand(f, t)"
        ),
        ("N", "S"),
    ),
    (
        "s = Shape(x) m = Gather(s, one) u = Unsqueeze(m, zeros) y = Slice(x, zeros, u, ones)",
        ("N", "S", 12),
    ),
    (
        (
            "s = Shape(x) l2 = Gather(s, two) h2 = Div(l2, three) u = Unsqueeze(h2, zeros) t "
            "= Concat <axis = 0> (zeros, zeros, u, minus) y = Reshape(x, t)"
        ),
        ("N", "S", 4, 3),
    ),
    ("y = Reshape(x, flat)", ("N", None)),
    ("a = Transpose <perm = [1, 0, 2]> (x) y = MatMul(a, w)", ("S", "N", 5)),
]


@pytest.mark.parametrize(("body", "expected"), PARTIAL)
def test_shapes_that_are_computed_in_parts(body, expected):
    numbers = {
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "three": np.array(3),
        "zeros": np.array([0]),
        "ones": np.array([1]),
        "twos": np.array([2]),
        "minus": np.array([-1]),
        "k": np.array([7]),
        "l": np.array([1, 1, 1]),
        "h": np.array([0, 0, 3, 4]),
        "flat": np.array([0, -1]),
        "f": np.float32(2),
        "w": np.ones((12, 5), np.float32),
    }
    proto = parse(
        f"g (float[N, S, 12] x) => (float[1] o) {{ {body} d = Shape(y) c = Cast <to = 1> (d)"
        " o = ReduceSum(c) }",
        initializers=numbers,
    )
    assert inferred(proto)["y"].dims == expected
    _, model, _ = run(InferShapes(), proto)
    check_against_runs(proto, model, [{"N": 2, "S": 3}, {"N": 1, "S": 1}, {"N": 4, "S": 5}])


def test_no_name_for_a_dimension_of_several_sizes():
    # N against M may be either, if one of them is 1
    types = inferred(
        parse("g (float[N] x, float[M] v) => (float[?] y) { a = Add(x, v) y = Abs(a) }")
    )
    assert types["a"].dims == (None,)
    types = inferred(
        parse("g (float[N] x, float[3] v) => (float[?] y) { a = Add(x, v) y = Abs(a) }")
    )
    assert types["a"].dims == (3,)


def test_inputs_and_outputs_stay_as_they_are_declared():
    proto = parse("g (float[N, 3] x) => (float[A, B] y) { y = Neg(x) }")
    after, _, ctx = run(InferShapes(), proto)
    assert after.graph.output == proto.graph.output
    assert not ctx.counters


def test_contradicting_declarations_stay_and_are_reported():
    proto = parse("g (float[2, 3] x) => (float[?, ?] y) <float[5, 5] a> { a = Neg(x) y = Abs(a) }")
    # outside of the kit, since ONNX's checker refuses the model
    model = ir.from_proto(proto)
    ctx = Context()
    result = InferShapes().run(model, ctx)
    assert type_of(model.graph[0].outputs[0]).dims == (5, 5)
    assert not result.modified
    assert ctx.counters == {"contradictions": 1}
    assert "[5, 5] is declared, [2, 3] is inferred" in ctx.decisions[0].reason


def test_an_invalid_node_is_counted_and_reported():
    proto = parse(
        "g (float[2, 3] x, float[4, 5] v) => (float[?, ?] y) { a = MatMul(x, v) y = Abs(a) }"
    )
    model = ir.from_proto(proto)
    ctx = Context()
    InferShapes().run(model, ctx)
    assert ctx.counters["failed"] == 1
    assert "Incompatible dimensions" in ctx.decisions[0].reason


def test_branches_and_bodies():
    proto = parse(
        """g (float[N, 3] x, bool c) => (float[?, ?] y) {
        t = If(c) <then_branch = a () => (float[?, ?] p) { b = Neg(x) p = Transpose(b) },
                   else_branch = e () => (float[?, ?] q) { d = Transpose(x) q = Exp(d) }>
        l, k = Loop(n, , t)
        <body = l (int64 i, bool f, float[?, ?] v) => (bool g, float[?, ?] w, float[?] s) {
            g = Identity(f) w = Neg(v) r = Cast <to = 1> (i) s = Unsqueeze(r, o) }>
        y = Abs(l) }""",
        initializers={"n": np.array(3), "o": np.array([0])},
    )
    _, model, _ = run(InferShapes(), proto)
    by_name = {}
    for node in model.graph.all_nodes():
        by_name.update((value.name, type_of(value)) for value in node.outputs)
    assert by_name["b"].dims == ("N", 3)
    assert by_name["t"].dims == (3, "N")
    assert by_name["r"].dims == ()
    assert by_name["k"].dims == (None, 1)
    assert by_name["l"].dtype == ir.DataType.FLOAT


def test_onnx_node_tests_run_with_the_inferred_types():
    seen = 0
    for case in node_cases():
        model = ir.from_proto(case.model)
        if len(model.graph) != 1 or len(model.graph[0].outputs) != len(case.data_sets[0][1]):
            continue
        node = model.graph[0]
        if node.attributes and any(
            a.type == ir.AttributeType.GRAPH for a in node.attributes.values()
        ):
            continue
        types = Operators(ShapeValues()).infer(node, model.opset_imports)
        for type_, expected in zip(types, case.data_sets[0][1], strict=True):
            seen += type_.dims is not None
            if isinstance(expected, np.ndarray):
                check_type(case.name, type_, expected)
    assert seen > 100


@settings(max_examples=60, deadline=None, derandomize=True)
@given(models())
def test_random_models_run_with_the_inferred_types(proto):
    proto = proto if isinstance(proto, onnx.ModelProto) else ir.to_proto(proto)
    _, model, ctx = run(InferShapes(), proto)
    assert ctx.counters["failed"] == ctx.counters["contradictions"] == 0
    with np.errstate(all="ignore"):
        check_against_runs(proto, model, [{}])


@pytest.mark.parametrize("axes", [[0], [0, 1]])
def test_a_scalar_unsqueezed_along_axes_that_are_fed(axes):
    """They may be several: the result is no vector of one element then."""
    declared = ",".join("?" * len(axes))
    proto = parse(
        f"""g (int64[K] axes, float[2, 3] x) => (int64[?] y, int64[{declared}] z)
        {{ n = Size(x) u = Unsqueeze(n, axes) y = Shape(u) z = Add(u, u) }}"""
    )
    feeds = {"axes": np.int64(axes), "x": np.zeros((2, 3), np.float32)}
    folded, _, _ = fold(proto)
    for model in (proto, folded):
        y, z = ReferenceEvaluator(model).run(None, feeds)
        assert y.tolist() == [1] * len(axes)
        assert z.shape == (1,) * len(axes)


@pytest.mark.parametrize("axes", [[0], []])
def test_a_vector_squeezed_along_axes_that_are_fed(axes):
    proto = parse(
        """g (int64[K] axes, float[2] x) => (int64[?] y)
        { n = Shape(x) u = Squeeze(n, axes) y = Shape(u) }"""
    )
    folded, _, _ = fold(proto)
    feeds = {"axes": np.int64(axes), "x": np.zeros(2, np.float32)}
    for model in (proto, folded):
        (y,) = ReferenceEvaluator(model).run(None, feeds)
        assert y.shape == (0 if axes else 1,)
