"""Casts to narrow floats round, and overflow, wherever the model has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
KINDS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
GIVEN = np.float32([70000, -70000, 65519, 65520, 0.1, -1 / 3, 1e-8, 3.4e38, 2049, 1e-41, np.inf])


def model(nodes, source=TensorProto.FLOAT, target=TensorProto.FLOAT, initializers=()):
    given = helper.make_tensor_value_info("x", source, ["N"])
    result = helper.make_tensor_value_info("y", target, ["N"])
    graph = helper.make_graph(nodes, "g", [given], [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def cast(given, result, kind):
    return helper.make_node("Cast", [given], [result], to=kind)


def there_and_back(array, dtype):
    with np.errstate(over="ignore"):
        return array.astype(dtype).astype(np.float32)


def run(proto, x=GIVEN):
    program = compile_model(proto)
    assert not any(plan.reason for plan in program.explain())
    return program.run({"x": x})["y"]


@pytest.mark.parametrize("name", NARROW)
def test_casts_to_a_narrow_type_round_once(name):
    proto = model([cast("x", "h", KINDS[name]), cast("h", "y", TensorProto.FLOAT)])
    np.testing.assert_array_equal(run(proto), there_and_back(GIVEN, NARROW[name]))


@pytest.mark.parametrize("name", NARROW)
def test_rounding_between_casts_is_kept(name):
    nodes = [
        cast("x", "h", KINDS[name]),
        cast("h", "r", TensorProto.FLOAT),
        helper.make_node("Sub", ["x", "r"], ["y"]),
    ]
    x = GIVEN[4:7]
    np.testing.assert_array_equal(run(model(nodes), x), x - there_and_back(x, NARROW[name]))


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_operator_gets_rounded_operands(name):
    nodes = [
        cast("x", "h", KINDS[name]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Neg", ["r"], ["n"]),
        cast("n", "y", TensorProto.FLOAT),
    ]
    expected = -np.maximum(there_and_back(GIVEN, NARROW[name]), 0)
    np.testing.assert_array_equal(run(model(nodes)), expected)


def test_a_narrow_result_is_rounded_before_it_is_upcast():
    half = TensorProto.FLOAT16
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"]),
        cast("s", "w", TensorProto.FLOAT),
        helper.make_node("Mul", ["w", "half"], ["y"]),
    ]
    tensor = numpy_helper.from_array(np.float32(0.5), "half")
    x = np.float16([60000, 0.1, 3])
    got = run(model(nodes, source=half, initializers=[tensor]), x)
    np.testing.assert_array_equal(got, np.float32([np.inf, np.float16(0.1), 3]))


def test_from_one_narrow_type_to_the_other():
    proto = model(
        [
            cast("x", "a", TensorProto.FLOAT16),
            cast("a", "b", TensorProto.BFLOAT16),
            cast("b", "y", TensorProto.FLOAT),
        ]
    )
    expected = there_and_back(there_and_back(GIVEN, np.float16), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(proto), expected)
    proto = model(
        [
            helper.make_node("Add", ["x", "x"], ["s"]),
            cast("s", "y", TensorProto.BFLOAT16),
        ],
        source=TensorProto.FLOAT16,
        target=TensorProto.BFLOAT16,
    )
    got = run(proto, np.float16([60000, 1]))
    np.testing.assert_array_equal(got.astype(np.float32), [np.inf, 2])


@pytest.mark.parametrize("name", NARROW)
def test_integers_become_narrow(name):
    nodes = [cast("x", "h", KINDS[name]), cast("h", "y", TensorProto.FLOAT)]
    x = np.int64([70000, 2049, 257, -3])
    expected = there_and_back(x.astype(np.float32), NARROW[name])
    np.testing.assert_array_equal(run(model(nodes, source=TensorProto.INT64), x), expected)


def test_a_view_of_a_rounded_value_is_not_rounded_again():
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["u"]),
        cast("u", "w", TensorProto.FLOAT),
        helper.make_node("Squeeze", ["w", "axis"], ["s"]),
        helper.make_node("Abs", ["s"], ["y"]),
    ]
    axis = numpy_helper.from_array(np.int64([0]), "axis")
    program = compile_model(model(nodes, source=TensorProto.FLOAT16, initializers=[axis]))
    assert not [plan for plan in program.explain() if "round" in plan.kernel]


def normalized(rounded):
    """Return the mean square normalization of rows, of which some are rounded explicitly."""
    nodes = [
        *rounded,
        helper.make_node("Mul", ["r", "r"], ["sq"]),
        helper.make_node("ReduceMean", ["sq"], ["m"], axes=[-1]),
        helper.make_node("Add", ["m", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["q"]),
        helper.make_node("Div", ["r", "q"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.float32(1e-5), "eps")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_rows_that_are_rounded_before_they_are_normalized():
    nodes = [cast("x", "h", TensorProto.BFLOAT16), cast("h", "r", TensorProto.FLOAT)]
    x = np.float32([[1.01, 2.03, 3.07, 4.09], [0.001, 1, 1.003, 2]])
    r = there_and_back(x, ml_dtypes.bfloat16)
    expected = r / np.sqrt(np.mean(r * r, axis=-1, keepdims=True) + 1e-5)
    got = compile_model(normalized(nodes)).run({"x": x})["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_scores_that_are_rounded_before_their_softmax():
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        cast("s", "h", TensorProto.FLOAT16),
        cast("h", "w", TensorProto.FLOAT),
        helper.make_node("Softmax", ["w"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {"q": [1, 2, 4], "k": [1, 4, 3], "v": [1, 3, 4]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(0)
    feeds = {n: (20 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
    scores = there_and_back(feeds["q"] @ feeds["k"], np.float16)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ feeds["v"]
    np.testing.assert_allclose(compile_model(proto).run(feeds)["y"], expected, rtol=1e-4)
