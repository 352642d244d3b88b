"""Operators of any element type in a tape: integers, conditions, float64 and narrow floats.

The oracle is numpy, whose integers wrap as C's unsigned ones do, or onnxruntime where it has the
operator for the type.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check, compile_model

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
SHAPES = {
    "one shape": ([3, 5, 17], [3, 5, 17]),
    "a scalar": ([3, 5, 17], []),
    "a row": ([17], [3, 5, 17]),
    "a column": ([3, 5, 1], [3, 5, 17]),
    "both ways": ([3, 1, 17], [5, 1]),
    "no elements": ([0, 5], [1, 5]),
    "ones": ([1, 1], [1]),
}


def code(dtype):
    if dtype == "bfloat16":
        return TensorProto.BFLOAT16
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def model_of(kind, dtypes, ranks, out, opset=22, **attributes):
    """Build a model of one node; all sizes are unknown."""
    names = [f"x{index}" for index in range(len(dtypes))]
    inputs = [
        helper.make_tensor_value_info(name, code(dtype), [f"{name}_{i}" for i in range(rank)])
        for name, dtype, rank in zip(names, dtypes, ranks, strict=True)
    ]
    node = helper.make_node(kind, names, ["y"], name="node", **attributes)
    output = helper.make_tensor_value_info("y", code(out), [f"y_{i}" for i in range(max(ranks))])
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    return model


def numbers(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype in FLOATS:
        few = rng.choice([-2.5, -1.0, -0.0, 0.0, 0.5, 3.0, np.inf, -np.inf, np.nan], shape)
        return np.asarray(few).astype(BFLOAT16 if dtype == "bfloat16" else dtype)
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, 2, 7]
    if limits.min < 0:
        edges += [-1, -2, -7]
    few = rng.choice(np.array(edges, object), shape)
    return np.asarray(few).astype(dtype)


def run(model, *given, threads=1):
    program = compile_model(model, threads=threads)
    names = [value.name for value in model.graph.input]
    (plan,) = program.explain()
    assert plan.partition is not None, plan
    (got,) = program.run(dict(zip(names, given, strict=True))).values()
    return got


def same(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind in "fV":
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, expected)


ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum}
ARITHMETIC["Min"] = np.minimum
COMPARISONS = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
BITWISE = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}


def pair(function, kind, dtype, shapes, out=None, opset=22, **attributes):
    a, b = numbers(dtype, shapes[0], 1), numbers(dtype, shapes[1], 2)
    model = model_of(kind, [dtype, dtype], [a.ndim, b.ndim], out or dtype, opset, **attributes)
    with np.errstate(all="ignore"):
        expected = np.asarray(function(a, b))
    same(run(model, a, b), expected)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float64"])
def test_arithmetic_wraps_and_broadcasts(kind, dtype, shapes):
    pair(ARITHMETIC[kind], kind, dtype, shapes)


@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_of_each_integer(kind, dtype):
    pair(ARITHMETIC[kind], kind, dtype, SHAPES["both ways"])


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", COMPARISONS)
def test_comparisons_broadcast(kind, shapes):
    pair(COMPARISONS[kind], kind, "int64", shapes, "bool")


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_comparisons_of_each_type(kind, dtype):
    pair(COMPARISONS[kind], kind, dtype, SHAPES["a row"], "bool")


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", LOGIC)
def test_logical_operators(kind, shapes):
    pair(LOGIC[kind], kind, "bool", shapes)


@pytest.mark.parametrize("kind", BITWISE)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bitwise(kind, dtype):
    pair(BITWISE[kind], kind, dtype, SHAPES["both ways"])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int32"])
def test_bit_shifts(direction, dtype):
    a = numbers(dtype, [40], 1)
    if dtype == "int32":
        a = np.abs(a // 2)
    b = np.random.default_rng(3).integers(0, np.iinfo(dtype).bits - 1, 40).astype(dtype)
    opset = 28 if dtype == "int32" else 11
    model = model_of("BitShift", [dtype] * 2, [1, 1], dtype, opset, direction=direction)
    same(run(model, a, b), (np.left_shift if direction == "LEFT" else np.right_shift)(a, b))


def test_a_shift_by_all_bits_leaves_nothing():
    model = model_of("BitShift", ["uint32"] * 2, [1, 1], "uint32", 11, direction="LEFT")
    a, b = np.array([1, 5, 7], np.uint32), np.array([32, 33, 2**32 - 1], np.uint32)
    same(run(model, a, b), np.zeros(3, np.uint32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates_and_does_not_trap(dtype):
    a, b = numbers(dtype, [200], 1), numbers(dtype, [200], 2)
    got = run(model_of("Div", [dtype] * 2, [1, 1], dtype, 14), a, b)
    expected = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    wrapped = np.array([np.uint64(item % 2**64) for item in expected])
    same(got, wrapped.astype(dtype))


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_mod_of_integers(dtype, fmod):
    a, b = numbers(dtype, [200], 1), numbers(dtype, [200], 2)
    b[b == 0] = 3
    got = run(model_of("Mod", [dtype] * 2, [1, 1], dtype, 13, fmod=fmod), a, b)
    with np.errstate(all="ignore"):
        same(got, (np.fmod if fmod else np.mod)(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fmod_of_floats(dtype):
    pair(np.fmod, "Mod", dtype, SHAPES["both ways"], opset=13, fmod=1)


@pytest.mark.parametrize("base", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "float64", "int32", "int64"])
def test_powers_of_any_two_types_are_those_of_onnxruntime(base, exponent):
    rng = np.random.default_rng(4)
    a = rng.integers(-4, 5, 60).astype(base)
    a[a == 0] = 2
    b = rng.integers(0, 6, 60).astype(exponent)
    model = model_of("Pow", [base, exponent], [1, 1], base, 15)
    check(model, {"x0": a, "x1": b}, oracle="onnxruntime", tolerance=1e-6)


def test_powers_of_floats_that_are_not_finite():
    values = np.float32([0, -0.0, 1, -1, 2, -2, 0.5, np.inf, -np.inf, np.nan, 1e-40, 3])
    a, b = (np.ascontiguousarray(grid) for grid in np.meshgrid(values, values))
    model = model_of("Pow", ["float32"] * 2, [2, 2], "float32", 15)
    check(model, {"x0": a, "x1": b}, oracle="onnxruntime", tolerance=1e-6)


@pytest.mark.parametrize("kind", ["Neg", "Abs", "Sign"])
@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_negation_magnitude_and_sign(kind, dtype):
    if kind == "Neg" and dtype.startswith("u"):
        pytest.skip("the schema has no such type")
    x = numbers(dtype, [4, 9])
    function = {"Neg": np.negative, "Abs": np.abs, "Sign": np.sign}[kind]
    same(run(model_of(kind, [dtype], [2], dtype, 13), x), function(x))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bitwise_not(dtype):
    x = numbers(dtype, [4, 9])
    same(run(model_of("BitwiseNot", [dtype], [2], dtype, 18), x), ~x)


def test_not():
    x = numbers("bool", [4, 9])
    same(run(model_of("Not", ["bool"], [2], "bool"), x), ~x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_which_numbers_are_not_finite(dtype):
    x = numbers(dtype, [50])
    wide = x.astype(np.float64)
    same(run(model_of("IsNaN", [dtype], [1], "bool", 20), x), np.isnan(wide))
    for positive, negative in ((1, 0), (0, 1), (1, 1), (0, 0)):
        signs = {"detect_positive": positive, "detect_negative": negative}
        model = model_of("IsInf", [dtype], [1], "bool", 20, **signs)
        expected = (positive & (wide == np.inf)) | (negative & (wide == -np.inf))
        same(run(model, x), expected.astype(np.bool_))


@pytest.mark.parametrize("source", [*INTEGERS, "bool", "float16", "float32", "float64"])
@pytest.mark.parametrize("target", [*INTEGERS, "bool", "float16", "float32", "float64"])
def test_casts_between_all_types_are_those_of_numpy(source, target):
    x = numbers(source, [3, 70])
    if x.dtype.kind == "f" and np.dtype(target).kind in "iu":
        x = np.nan_to_num(x, posinf=100, neginf=-100)  # what C leaves open: see the next tests
    if np.dtype(target).kind == "u":
        x = np.abs(x)
    model = model_of("Cast", [source], [2], target, 19, to=code(target))
    with np.errstate(all="ignore"):
        same(run(model, x), x.astype(target))


@pytest.mark.parametrize("target", ["int32", "int64"])
def test_a_float_out_of_range_becomes_the_least_integer(target):
    x = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 2.0**63, 5.9, -5.9])
    model = model_of("Cast", ["float32"], [1], target, 19, to=code(target))
    limits = np.iinfo(target)
    inside = (x.astype(np.float64) >= limits.min) & (
        x.astype(np.float64) < 2.0 ** (limits.bits - 1)
    )
    expected = np.where(inside, np.trunc(np.where(inside, x, 0)), float(limits.min))
    same(run(model, x), expected.astype(target))


def test_cast_like_takes_the_type_alone():
    model = model_of("CastLike", ["int64", "float32"], [1, 2], "float32", 19)
    got = compile_model(model).run({"x0": np.arange(5), "x1": np.zeros((0, 3), np.float32)})
    same(got["y"], np.arange(5, dtype=np.float32))


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", *FLOATS])
def test_where_of_each_type(dtype):
    condition, x, y = numbers("bool", [3, 1]), numbers(dtype, [1, 9], 1), numbers(dtype, [3, 9], 2)
    model = model_of("Where", ["bool", dtype, dtype], [2, 2, 2], dtype)
    same(run(model, condition, x, y), np.where(condition, x, y))


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("bounds", ["low", "high", "both"])
def test_clip_with_computed_bounds(dtype, bounds):
    x = np.arange(-20 if not dtype.startswith("u") else 0, 40).astype(dtype)
    low, high = np.asarray(3).astype(dtype), np.asarray(17).astype(dtype)
    names = ["x", "" if bounds == "high" else "low", "" if bounds == "low" else "high"]
    given = [name for name in names if name]
    feeds = {name: {"x": x, "low": low, "high": high}[name] for name in given}
    inputs = [
        helper.make_tensor_value_info(name, code(dtype), ["n"] if name == "x" else [])
        for name in given
    ]
    output = helper.make_tensor_value_info("y", code(dtype), ["n"])
    graph = helper.make_graph([helper.make_node("Clip", names, ["y"])], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    program = compile_model(model)
    assert all(plan.partition is not None for plan in program.explain())
    expected = np.clip(x, None if bounds == "high" else low, None if bounds == "low" else high)
    same(program.run(feeds)["y"], expected)


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_nan_comes_of_nan_in_extremes_of_many(kind):
    given = [numbers("float32", [40], seed) for seed in range(3)]
    model = model_of(kind, ["float32"] * 3, [1] * 3, "float32", 13)
    function = np.maximum if kind == "Max" else np.minimum
    same(run(model, *given), function(function(given[0], given[1]), given[2]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mean_of_many_broadcasts(dtype):
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(shape).astype(dtype) for shape in ([3, 4], [4], [3, 1])]
    got = run(model_of("Mean", [dtype] * 3, [2, 1, 2], dtype, 13), *given)
    np.testing.assert_allclose(got, (given[0] + given[1] + given[2]) / 3, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_divide_long_rows(threads):
    a, b = numbers("int32", [3, 40_001], 1), numbers("int32", [3, 1], 2)
    model = model_of("Add", ["int32"] * 2, [2, 2], "int32", 14)
    with np.errstate(all="ignore"):
        same(run(model, a, b, threads=threads), a + b)


def test_a_mask_does_not_cut_the_tape():
    """A padding mask from lengths, added to scores: one partition."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[N, 1] lengths, int64[1, T] positions, float[N, T] scores) => (float[N, T] y)
        <float none = {0.0}, float least = {-1e9}, int64 two = {2}, int64 most = {100}> {
            doubled = Mul(lengths, two)
            bound = Min(doubled, most)
            before = Less(positions, bound)
            out = Not(before)
            mask = Where(out, least, none)
            sum = Add(scores, mask)
            y = Softmax<axis = -1>(sum)
        }
    """)
    feeds = {
        "lengths": np.array([[1], [3]]),
        "positions": np.arange(7)[None],
        "scores": np.random.default_rng(6).standard_normal((2, 7)).astype(np.float32),
    }
    program = check(model, feeds, oracle="onnxruntime", tolerance=1e-6)
    assert {plan.partition for plan in program.explain()} == {0}


def test_shapes_that_do_not_broadcast_name_the_node():
    from narrowpass.errors import BackendError

    program = compile_model(model_of("Add", ["int64"] * 2, [1, 1], "int64", 14))
    with pytest.raises(BackendError, match=r"'node'.*\[3\] and \[4\]"):
        program.run({"x0": np.arange(3), "x1": np.arange(4)})


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float64])
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("clamp", ["Clip", "Relu"])
def test_clamps_behind_typed_arithmetic_are_computed(dtype, kind, clamp):
    """Only kernels of float32 have a clipping range that a Relu or Clip could be fused into."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = ["z", "", "most"] if clamp == "Clip" else ["z"]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "x2"], ["z"]), helper.make_node(clamp, inputs, ["y"])],
        "g",
        [helper.make_tensor_value_info(name, code, ["N"]) for name in ("x", "x2")],
        [helper.make_tensor_value_info("y", code, ["N"])],
        [numpy_helper.from_array(np.array(3, dtype), "most")] if clamp == "Clip" else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = np.arange(-5, 6).astype(dtype)
    got = compile_model(model).run({"x": x, "x2": x[::-1].copy()})["y"]
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[kind]
    result = function(x, x[::-1])
    expected = np.minimum(result, 3) if clamp == "Clip" else np.maximum(result, 0)
    np.testing.assert_array_equal(got, expected, strict=True)
