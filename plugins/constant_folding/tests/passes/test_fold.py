"""What is folded, and what is left alone for a reason."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import (
    assert_same_bits,
    check_onnxruntime,
    check_reference,
    fold,
    initializer,
    ops,
    parse,
    run,
)
from onnx.reference import ReferenceEvaluator

from narrowpass import Accept, Context, Reject
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.fold_constants import FoldConstants
from narrowpass_reference import ReferenceBackend

X = {"x": np.array([1.0, 2.0, 3.0, 4.0], np.float32)}


def decision(ctx, node):
    (found,) = [item for item in ctx.decisions if item.node == node]
    return found


def test_a_chain_of_constants_becomes_one_initializer_of_the_last_name():
    proto = parse(
        """g (float[4] x) => (float[4] y) <float[4] a = {1, 2, 3, 4}, float b = {2}>
        { p = Mul(a, b)  q = Add(p, a)  y = Add(x, q) }"""
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["Add"]
    assert [item.name for item in after.graph.initializer] == ["q"]
    assert ctx.counters["folded"] == 2
    assert ctx.counters["dead-initializers"] == 3
    check_reference(proto, after, X)
    check_onnxruntime(proto, after, X)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": onnx.numpy_helper.from_array(np.zeros((0, 3), np.float16))}, "float16"),
        ({"value_float": -0.0}, "float"),
        ({"value_floats": [1.5, -0.0]}, "float"),
        ({"value_int": 7}, "int64"),
        ({"value_ints": [7, 8]}, "int64"),
        ({"value_string": "hé"}, "string"),
        ({"value_strings": ["a", ""]}, "string"),
    ],
)
def test_every_form_of_constant_becomes_an_initializer(attribute, expected):
    node = onnx.helper.make_node("Constant", [], ["c"], **attribute)
    dtype = getattr(onnx.TensorProto, expected.upper())
    shape = ReferenceEvaluator(node).run(None, {})[0].shape
    graph = onnx.helper.make_graph(
        [node], "g", [], [onnx.helper.make_tensor_value_info("c", dtype, shape)]
    )
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    after, _, ctx = fold(proto)
    assert ops(after) == []
    assert initializer(after, "c").data_type == dtype
    assert ctx.counters["constants"] == 1
    check_reference(proto, after, {})


@pytest.mark.parametrize(
    "text",
    [
        "g () => (float[2] y) { y = RandomNormal <shape = [2]> () }",
        "g () => (float[2] y) <float[2] a = {1, 2}> { y = RandomUniformLike(a) }",
        "g () => (float[2] y) <float[2] a = {0.5, 0.5}> { y = Bernoulli(a) }",
        (
            "g () => (int32[1, 2] y) <float[1, 2] a = {0.5, 0.5}>"
            " { y = Multinomial <sample_size = 2> (a) }"
        ),
        (
            "g () => (float[2] y) <float[2] a = {1, 2}, float r = {0.5}, bool t = {1}>"
            " { y = Dropout(a, r, t) }"
        ),
        """g () => (float[2] y) <bool c = {1}, float[2] a = {1, 2}> {
           y = If(c) <then_branch = t () => (float[2] p) { p = RandomNormalLike(a) },
                      else_branch = e () => (float[2] q) { q = Neg(a) }> }""",
    ],
)
def test_random_operators_stay(text):
    proto = parse(text)
    after, _, ctx = run(FoldConstants(), proto)
    assert [node for node in ops(after) if node != "Neg"] == ops(proto)
    assert "determinism" in {item.by for item in ctx.decisions}


def test_two_random_nodes_are_not_merged():
    proto = parse(
        "g () => (float[2] y, float[2] z)"
        "{ y = RandomNormal <shape = [2]> ()  z = RandomNormal <shape = [2]> () }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["RandomNormal", "RandomNormal"]


def test_only_functions_without_random_operators_fold():
    text = """g () => (float[2] y, float[2] z) <float[2] a = {1, 2}>
        { y = local.noisy(a)  z = local.plain(a) }
        <domain: "local", opset_import: ["" : 17]>
        noisy (v) => (w) { n = RandomNormalLike(v)  w = Add(v, n) }
        <domain: "local", opset_import: ["" : 17]>
        plain (v) => (w) { n = Mul(v, v)  w = Add(v, n) }"""
    proto = parse(text, more=', "local" : 1')
    after, _, ctx = fold(proto)
    assert ops(after) == ["noisy"]
    assert [function.name for function in after.functions] == ["noisy"]
    assert ctx.counters["dead-functions"] == 1
    assert_same_bits(
        onnx.numpy_helper.to_array(initializer(after, "z")), np.array([2, 6], np.float32)
    )


def test_dropout_outside_of_training_folds():
    proto = parse("g () => (float[2] y) <float[2] a = {1, 2}> { y = Dropout(a) }")
    after, _, _ = fold(proto)
    assert ops(after) == []
    check_reference(proto, after, {})


def test_quantization_of_constants_stays():
    proto = parse(
        """g () => (float[2] y) <float[2] a = {1, 2}, float s = {0.5}, int8 z = {0}>
        { q = QuantizeLinear(a, s, z)  y = DequantizeLinear(q, s, z) }"""
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["QuantizeLinear", "DequantizeLinear"]
    assert [item.by for item in ctx.decisions] == ["quantization"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_an_upcast_of_a_stored_constant_stays(dtype):
    proto = parse(
        "g (float[4] x) => (float[4] y) { w = Cast <to = 1> (h)  y = Add(x, w) }",
        initializers={"h": np.array([1, 2, 3, 4], dtype)},
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["Cast", "Add"]
    assert [item.by for item in ctx.decisions] == ["upcast"]


def test_an_initializer_that_is_an_input_is_no_constant():
    proto = parse(
        "g (float[4] x, float[4] a) => (float[4] y, float[4] z) <float[4] b = {1, 1, 1, 1}>"
        "{ p = Neg(a)  y = Add(x, p)  q = Neg(b)  z = Add(x, q) }",
        initializers={"a": np.ones(4, np.float32)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Neg", "Add", "Add"]
    feeds = {**X, "a": np.full(4, 5, np.float32)}
    check_reference(proto, after, feeds)
    check_onnxruntime(proto, after, feeds)
    check_onnxruntime(proto, after, X)


def test_below_ir_version_4_results_are_constant_nodes():
    proto = parse(
        "g (float[4] x) => (float[4] y) { c = Constant <value = float[1] {2}> ()"
        " d = Neg(c)  y = Add(x, d) }",
        ir_version=3,
        opset=9,
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Constant", "Add"]
    assert after.graph.node[0].output == ["d"]
    assert not after.graph.initializer
    check_reference(proto, after, X)
    check_onnxruntime(proto, after, X)


def test_results_in_a_function_body_are_constant_nodes():
    proto = parse(
        """g (float[4] x) => (float[4] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]>
        f (v) => (w) { c = Constant <value_float = 2.0> ()  d = Neg(c)  w = Mul(v, d) }""",
        more=', "local" : 1',
    )
    after, _, _ = fold(proto)
    assert [node.op_type for node in after.functions[0].node] == ["Constant", "Mul"]
    check_reference(proto, after, X)
    check_onnxruntime(proto, after, X)


def test_an_attribute_of_the_caller_is_no_constant():
    proto = parse(
        """g (float[4] x) => (float[4] y) { y = local.f <k = 3.0> (x) }
        <domain: "local", opset_import: ["" : 17]>
        f <k> (v) => (w)
        { c = Constant <value_float : float = @k> ()  d = Neg(c)  w = Mul(v, d) }""",
        more=', "local" : 1',
    )
    after, _, _ = fold(proto)
    assert [node.op_type for node in after.functions[0].node] == ["Constant", "Neg", "Mul"]
    check_reference(proto, after, X)


@pytest.mark.parametrize(
    ("node", "declared", "expected"),
    [
        ("Shape(x)", "float[2, 3]", [2, 3]),
        ("Shape <start = 1> (x)", "float[N, 3]", [3]),
        ("Shape <start = -2, end = -1> (x)", "float[N, 4, M]", [4]),
        ("Shape <start = 5> (x)", "float[N, 4]", []),
        ("Size(x)", "float[2, 3]", 6),
        ("Shape(x)", "float[0, 3]", [0, 3]),
    ],
)
def test_expressions_of_static_shapes_fold(node, declared, expected):
    rank = "" if isinstance(expected, int) else f"[{len(expected)}]"
    proto = parse(f"g ({declared} x) => (int64{rank} y) {{ y = {node} }}", opset=15)
    after, _, ctx = fold(proto)
    assert ops(after) == []
    value = onnx.numpy_helper.to_array(initializer(after, "y"))
    assert_same_bits(value, np.array(expected, np.int64))
    assert [item.by for item in ctx.decisions] == ["static-shape"]


@pytest.mark.parametrize("node", ["Shape(x)", "Shape <end = 1> (x)", "Size(x)"])
def test_dynamic_dimensions_are_never_baked_in(node):
    proto = parse(
        f"g (float[N, 3] x) => (int64[?] y) {{ s = {node}  t = Reshape(s, m)  y = Neg(t) }}",
        initializers={"m": np.array([-1])},
    )
    after, _, _ = fold(proto)
    assert ops(after)[0] == ops(proto)[0]
    for size in (0, 1, 5):
        check_reference(proto, after, {"x": np.zeros((size, 3), np.float32)})


def test_expressions_of_types_fold():
    proto = parse(
        "g (float16[N] x) => (float16[N] y) <float b = {1.5}> { c = CastLike(b, x)  y = Add(x, c) }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["Add"]
    assert initializer(after, "c").data_type == onnx.TensorProto.FLOAT16


class Unreadable(ir.Tensor):
    """A tensor of zeros whose data must not be read."""

    def __init__(self, shape):
        super().__init__(np.broadcast_to(np.zeros((), np.float32), shape))

    def numpy(self):
        raise AssertionError("the weight was read")

    tobytes = __array__ = numpy


def test_only_folded_tensors_are_read():
    proto = parse(
        "g (float[N, 4] x, float[4, 4] v) => (float[N, 4] y, int64[2] s, float[4096, 4096] t)"
        "{ y = MatMul(x, v)  s = Shape(v)  t = Transpose(v) }"
    )
    model = ir.from_proto(proto)
    value = model.graph.inputs.pop()
    value.const_value = Unreadable((4096, 4096))
    value.shape = ir.Shape((4096, 4096))
    model.graph.initializers.add(value)
    ctx = Context()
    Fold().run(model, ctx)
    assert [node.op_type for node in model.graph] == ["MatMul", "Transpose"]
    assert model.graph.initializers["s"].const_value.numpy().tolist() == [4096, 4096]
    left = decision(ctx, "t")
    assert (left.by, left.measured, left.limit) == ("size-rule", 4096 * 4096 * 4, 1024)


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("ConstantOfShape(s)", [100_000, 100_000]),
        ("Expand(a, s)", [100_000, 100_000]),
        ("Tile(a, s)", [100_000, 100_000]),
        ("OneHot(i, n, v)", [1_000_000_000]),
        ("Range(zero, n, one)", [1_000_000_000]),
    ],
)
def test_results_of_gigabytes_are_not_evaluated(node, shape):
    proto = parse(
        f"g () => (double y) {{ c = {node}  d = Cast <to = 11> (c)"
        "  y = ReduceSum <keepdims=0>(d) }",
        initializers={
            "s": np.array(shape),
            "a": np.ones((1, 1), np.float32),
            "i": np.zeros(1, np.int64),
            "n": np.array(shape[0]),
            "v": np.array([0, 1], np.float32),
            "zero": np.array(0),
            "one": np.array(1),
        },
    )
    after, _, ctx = fold(proto)
    assert len(after.graph.node) == 3
    assert ctx.counters["too-large"] == 1
    assert ctx.counters["failed"] == 0


def test_max_growth_bounds_the_result():
    proto = parse(
        "g (float[N] x) => (float[300, N] y) { e = Exp(a)  f = Add(e, b)  y = Mul(x, f) }",
        initializers={"a": np.ones(1, np.float32), "b": np.ones((300, 1), np.float32)},
    )
    assert ops(fold(proto)[0]) == ["Mul"]  # 1200 bytes out, 1204 freed
    shared = parse(
        "g (float[N] x) => (float[300, N] y, float[300, N] z)"
        "{ f = Add(a, b)  y = Mul(x, f)  z = Mul(x, b) }",
        initializers={"a": np.ones(1, np.float32), "b": np.ones((300, 1), np.float32)},
    )
    after, _, ctx = fold(shared)
    assert ops(after) == ["Add", "Mul", "Mul"]
    assert ctx.counters["too-large"] == 1
    assert ops(fold(shared, max_growth=1196)[0]) == ["Mul", "Mul"]
    assert ops(fold(shared, max_growth=1195)[0]) == ["Add", "Mul", "Mul"]


def test_a_matmul_of_constants_folds_while_its_weight_stays():
    # DeBERTa multiplies its relative positions by the weight of the keys, as it does the tokens.
    rng = np.random.default_rng(3)
    table, weight = (rng.standard_normal(shape, np.float32) for shape in ((96, 64), (64, 64)))
    proto = parse(
        "g (float[N, 64] x) => (float[N, 96] y) {"
        "keys = MatMul(x, weight)  positions = MatMul(table, weight)  biased = Add(positions, bias)"
        "transposed = Transpose<perm = [1, 0]>(biased)  y = MatMul(keys, transposed) }",
        initializers={"table": table, "weight": weight, "bias": np.ones(64, np.float32)},
    )
    after, _, _ = fold(proto)
    assert ops(after) == ["MatMul", "MatMul"]
    x = rng.standard_normal((3, 64), np.float32)
    check_onnxruntime(proto, after, {"x": x})


def test_a_matmul_larger_than_its_operands_does_not_fold():
    vectors = {"a": np.ones((300, 1), np.float32), "b": np.ones((1, 300), np.float32)}
    proto = parse(
        "g (float[300, 300] x) => (float[300, 300] y) { f = MatMul(a, b)  y = Mul(x, f) }",
        initializers=vectors,
    )
    assert ops(fold(proto)[0]) == ["MatMul", "Mul"]


def test_a_large_node_folds_after_a_later_fold_frees_its_operand():
    weight = np.arange(65536, dtype=np.float32).reshape(256, 256)
    proto = parse(
        "g (float[N, 256] x) => (float[N, 256] y, int64[1] s)"
        "{ t = Transpose(w)  y = MatMul(x, t)  r = ReduceSum <keepdims = 0> (w)"
        "  i = Cast <to = 7> (r)  s = Reshape(i, one) }",
        initializers={"w": weight, "one": np.array([1])},
    )
    after, _, ctx = fold(proto)
    assert ops(after) == ["MatMul"]
    assert ctx.counters["too-large"] == 0
    assert_same_bits(onnx.numpy_helper.to_array(initializer(after, "t")), weight.T)


@pytest.mark.parametrize(
    "text",
    [
        "g () => (float[?] y) <float[2] a = {1, 2}, int64[1] i = {9}> { y = Gather(a, i) }",
        "g () => (float[2] y) <float[3] a = {1, 2, 3}, int64[1] s = {2}> { y = Reshape(a, s) }",
        "g () => (int64 y) <int64 a = {1}, int64 z = {0}> { y = Div(a, z) }",
        "g () => (int32 y) <float a = {1e20}> { y = Cast <to = 6> (a) }",
        'g () => (int64 y) <string a = {"ten"}> { y = Cast <to = 7> (a) }',
    ],
)
def test_an_expression_whose_evaluation_raises_stays(text):
    proto = parse(text)
    model = ir.from_proto(proto)
    ctx = Context()
    assert not Fold().run(model, ctx).modified
    assert [node.op_type for node in model.graph] == ops(proto)
    assert ctx.counters["failed"] == 1
    (left,) = ctx.decisions
    assert left.decision == "failed"
    assert left.reason


def test_keep_selects_nodes_by_name_and_type(caplog):
    proto = parse(
        """g (float[4] x) => (float[4] y) <float[4] a = {1, 2, 3, 4}>
        { [one] p = Neg(a)  [two] q = Exp(p)  [three] r = Identity(x)  y = Add(r, q) }"""
    )
    assert ops(fold(proto, keep=("one",))[0]) == ["Neg", "Exp", "Add"]
    assert ops(fold(proto, keep=("t*",))[0]) == ["Exp", "Identity", "Add"]
    assert ops(fold(proto, keep=("op:Exp", "nothing"))[0]) == ["Exp", "Add"]
    assert "'nothing' matches no node" in caplog.text


def test_unknown_operators_stay_with_their_operands():
    proto = parse(
        "g (float[4] x) => (float[4] y) <float[4] a = {1, 2, 3, 4}>"
        "{ n = Neg(a)  c = other.Op(n)  y = Add(x, c) }",
        more=', "other" : 1',
    )
    model = ir.from_proto(proto)
    Fold().run(model, Context())
    assert [node.op_type for node in model.graph] == ["Op", "Add"]
    assert "other" in model.opset_imports


@pytest.mark.parametrize(
    "value",
    [
        np.array([-0.0, np.nan, np.inf, -np.inf], np.float32),
        np.array([1.5, -0.0], ml_dtypes.bfloat16),
        np.array([1.5, np.nan], ml_dtypes.float8_e4m3fn),
        np.array([1, -8, 3], ml_dtypes.int4),
        np.array([1, 15, 3], ml_dtypes.uint4),
        np.zeros((0, 2), np.float64),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
    ],
    ids=lambda value: str(value.dtype),
)
def test_results_keep_the_dtype_and_the_bits(value):
    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    rows = onnx.helper.make_node("Reshape", ["a", "s"], ["y"], allowzero=1)
    shape = (1, *value.shape)
    graph = onnx.helper.make_graph(
        [rows],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", dtype, shape)],
        [
            onnx.numpy_helper.from_array(value, "a"),
            onnx.numpy_helper.from_array(np.array(shape), "s"),
        ],
    )
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    )
    after, model, _ = fold(proto)
    assert ops(after) == []
    assert initializer(after, "y").data_type == dtype
    result = model.graph.initializers["y"].const_value
    assert result.dtype == ir.DataType(dtype)
    assert result.tobytes() == ir.Tensor(value).tobytes()


def test_strings_stay_bytes():
    proto = parse(
        'g () => (string[1, 2] y) <string[2] a = {"é", ""}, int64[2] s = {1, 2}>'
        "{ y = Reshape(a, s) }"
    )
    after, _, _ = fold(proto)
    assert ops(after) == []
    assert list(initializer(after, "y").string_data) == ["é".encode(), b""]


def test_zero_times_a_value_does_not_fold():
    proto = parse("g (float[4] x) => (float[4] y) <float z = {0}> { y = Mul(x, z) }")
    assert ops(fold(proto)[0]) == ["Mul"]


def test_the_pass_in_pipeline_text():
    assert str(Fold()) == "fold"
    assert (
        str(Fold(max_growth=0, keep=("op:Exp", "/a/*"))) == "fold{max-growth=0,keep=[op:Exp,/a/*]}"
    )
    with pytest.raises(ValueError, match="max-growth"):
        Fold(max_growth=-1)


class FakeBackend(ReferenceBackend):
    """The reference under another name, which refuses one operator and counts what it compiles."""

    name = "fake"

    def __init__(self):
        self.compiled = 0

    def supports(self, node):
        return Reject("no pools here") if node.op_type == "LpPool" else Accept()

    def compile(self, bundle, options):
        self.compiled += 1
        return super().compile(bundle, options)


@pytest.mark.parametrize(("op", "native"), [("MaxPool", True), ("LpPool", False)])
def test_slow_evaluations_run_on_the_target(op, native):
    proto = parse(
        "g () => (float[1, 1, ?, ?] y)"
        f"{{ y = {op} <kernel_shape = [9, 9], strides = [8, 8]> (a) }}",
        initializers={"a": np.ones((1, 1, 200, 200), np.float32)},
    )
    target = FakeBackend()
    ctx = Context(target=target)
    model = ir.from_proto(proto)
    FoldConstants().run(model, ctx)
    assert target.compiled == native
    assert ctx.counters["folded"] == native
    assert ctx.counters["too-large"] == (not native)
    if not native:
        assert ctx.decisions[0].by == "time-rule"
        return
    (expected,) = ReferenceEvaluator(proto).run(None, {})
    assert_same_bits(model.graph.outputs[0].const_value.numpy(), expected)


def test_a_large_erf_folds():
    proto = parse(
        "g () => (float[300, 300] y) { y = Erf(a) }",
        initializers={"a": np.linspace(-4, 4, 90000, dtype=np.float32).reshape(300, 300)},
    )
    assert ops(fold(proto)[0]) == []
