"""LabelEncoder, OneHotEncoder and SVMClassifier of ai.onnx.ml, against onnxruntime's kernels.

Categories are exact. Scores of support vectors differ by 1e-5 of the largest one: onnxruntime
accumulates in float32, these kernels in float64.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import session_of
from xnn_kit import compile_model

from narrowpass.errors import BackendError

RNG = np.random.default_rng(5)
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
TEXTS = np.array([["a", "b", ""], ["z", "ba", "a"]], object)


def model_of(op_type, x, outputs, version=3, **attributes):
    node = helper.make_node(
        op_type, ["x"], list(outputs), name="node", domain="ai.onnx.ml", **attributes
    )
    kind = STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    feed = helper.make_tensor_value_info("x", kind, [f"d{axis}" for axis in range(x.ndim)])
    results = [helper.make_tensor_value_info(name, of, None) for name, of in outputs.items()]
    graph = helper.make_graph([node], "g", [feed], results)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def agree(op_type, x, outputs, tolerance=0.0, **more):
    model = model_of(op_type, x, outputs, **more)
    session = session_of(model, optimized=True)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        forms = [x, x[:1], x[:0]]
        if x.dtype == object:
            forms.append(x.astype(str))  # numpy's own strings
        for rows in forms:
            if not rows.size and op_type == "SVMClassifier":
                continue  # onnxruntime takes no matrix without rows
            got = program.run({"x": rows})
            for name, value in zip(outputs, session.run(None, {"x": rows}), strict=True):
                assert got[name].shape == value.shape
                if value.dtype.kind == "f" and tolerance:
                    least = tolerance * max(1, np.abs(value).max(initial=0))
                    np.testing.assert_allclose(got[name], value, rtol=0, atol=least)
                else:
                    assert got[name].tolist() == value.tolist()


KEYS = {
    "strings": (["a", "b", "c"], TEXTS, STRING),
    "int64s": ([3, -1, 7], np.array([[3, 7, 0], [-1, 2, 3]]), INT64),
    "floats": (
        [0.5, -1.0, float("nan")],
        np.array([[0.5, np.nan, 1], [-1, -0.0, np.inf]], np.float32),
        FLOAT,
    ),
}
VALUES = {"strings": ["x", "y", "z"], "int64s": [5, 6, 7], "floats": [0.25, -0.5, 8.0]}


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_label_encoder_maps_each_key_to_its_value(keys, values, default):
    listed, x, _ = KEYS[keys]
    usual = {"strings": ("string", "none"), "int64s": ("int64", 99), "floats": ("float", 1.5)}
    named = {f"keys_{keys}": listed, f"values_{values}": VALUES[values]}
    if default:
        name, value = usual[values]
        named[f"default_{name}"] = value
    agree("LabelEncoder", x, {"y": KEYS[values][2]}, **named)


def test_label_encoder_with_tensors_of_double():
    x = np.array([[1.5, 2.5, np.nan]])
    named = {
        "keys_tensor": numpy_helper.from_array(np.array([2.5, 1.5, np.nan])),
        "values_tensor": numpy_helper.from_array(np.array([1.0, 2.0, 3.0])),
        "default_tensor": numpy_helper.from_array(np.array([-7.0])),
    }
    agree("LabelEncoder", x, {"y": TensorProto.DOUBLE}, version=4, **named)


@pytest.mark.parametrize("kind", ["strings", "numbers"])
def test_label_encoder_of_version_1(kind):
    named = {"classes_strings": ["a", "b", "z"], "default_int64": 7, "default_string": "none"}
    x = TEXTS if kind == "strings" else np.array([[0, 2, 3, -1]])
    output = {"y": INT64 if kind == "strings" else STRING}
    agree("LabelEncoder", x, output, version=1, **named)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_one_hot_encoder_of_numbers(dtype, axes):
    x = RNG.integers(-1, 5, (3, 2, 4)[:axes]).astype(dtype)
    agree("OneHotEncoder", x, {"y": FLOAT}, cats_int64s=[4, 0, 2], zeros=1)


def test_one_hot_encoder_of_strings():
    agree("OneHotEncoder", TEXTS, {"y": FLOAT}, cats_strings=["b", "a"], zeros=1)


def test_one_hot_encoder_names_the_node_where_a_category_is_unknown():
    x = np.array([1, 5])
    model = model_of("OneHotEncoder", x, {"y": FLOAT}, cats_int64s=[1, 2], zeros=0)
    with compile_model(model) as program, pytest.raises(BackendError, match=r"'node'.*categor"):
        program.run({"x": x})


def machine(classes, labels, *, probable, kernel, features=4):
    """Draw support vectors: 2, 3, ... of the classes."""
    counts = [2 + index for index in range(classes)]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    draw = lambda *shape: RNG.standard_normal(shape).astype(np.float32).reshape(-1).tolist()  # noqa: E731
    named = {
        "kernel_type": kernel,
        "kernel_params": [0.2, 0.5, 2.0],
        "vectors_per_class": counts,
        "support_vectors": draw(total, features),
        "coefficients": draw(classes - 1, total),
        "rho": draw(pairs),
    }
    if probable:
        named |= {"prob_a": (-np.abs(draw(pairs)) - 0.5).tolist(), "prob_b": draw(pairs)}
    if labels == "strings":
        return named | {"classlabels_strings": [f"class {index}" for index in range(classes)]}
    return named | {"classlabels_ints": [7 - index for index in range(classes)]}


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("probable", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("labels", ["strings", "ints"])
def test_classifier_of_support_vectors(kernel, probable, classes, labels):
    x = RNG.standard_normal((9, 4)).astype(np.float32)
    named = machine(classes, labels, probable=probable, kernel=kernel)
    outputs = {"label": STRING if labels == "strings" else INT64, "scores": FLOAT}
    agree("SVMClassifier", x, outputs, 1e-5, version=1, **named)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifier_of_support_vectors_takes_numbers_of_other_types(dtype):
    x = RNG.integers(-3, 4, (5, 4)).astype(dtype)
    named = machine(3, "ints", probable=True, kernel="RBF")
    agree("SVMClassifier", x, {"label": INT64, "scores": FLOAT}, 1e-5, version=1, **named)


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX"])
def test_scores_are_transformed(transform):
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    named = machine(3, "ints", probable=False, kernel="LINEAR") | {"post_transform": transform}
    agree("SVMClassifier", x, {"label": INT64, "scores": FLOAT}, 1e-5, version=1, **named)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifier_without_support_vectors_is_linear(classes, positive):
    x = RNG.standard_normal((9, 4)).astype(np.float32)
    weights = RNG.standard_normal(classes * 4).astype(np.float32)
    named = {
        "coefficients": (np.abs(weights) if positive else weights).tolist(),
        "rho": [0.25],
        "kernel_params": [0.0, 0.0, 0.0],
        "classlabels_ints": [3, 1, 2][:classes],
    }
    agree("SVMClassifier", x, {"label": INT64, "scores": FLOAT}, 1e-5, version=1, **named)


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0.0, 1.0, 0.1), (5.0, 1.0, -0.7), (1.0, 1.0, 2.0), (2.0, 1.0, 1)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_range_of_floats(start, limit, delta, dtype):
    feeds = {"a": np.array(start, dtype), "b": np.array(limit, dtype), "c": np.array(delta, dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    infos = [helper.make_tensor_value_info(name, kind, []) for name in feeds]
    graph = helper.make_graph(
        [helper.make_node("Range", list(feeds), ["y"], name="node")],
        "g", infos, [helper.make_tensor_value_info("y", kind, ["n"])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = session_of(model, optimized=True)
    (expected,) = session.run(None, feeds)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        got = program.run(feeds)["y"]
    assert got.dtype == expected.dtype
    # onnxruntime adds the step again and again, which rounds as often; here it is multiplied.
    least = max(1, len(expected)) * np.finfo(dtype).eps * np.abs(expected).max(initial=1)
    np.testing.assert_allclose(got, expected, rtol=0, atol=least)


def test_strings_are_moved_without_the_evaluator():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 19]>
        g (string[a, b] x) => (string[p, q] y, bool[r, s] z) {
            shape = Constant <value = int64[2] {1, -1}> ()
            flat = Reshape (x, shape)
            turned = Transpose (flat)
            y = Concat <axis = 0> (turned, turned)
            z = Equal (turned, turned)
        }"""
    )
    session = session_of(model, optimized=True)
    with compile_model(model) as program:
        assert not [plan for plan in program.explain() if plan.reason]
        for x in (TEXTS, TEXTS[:1]):
            got = program.run({"x": x})
            for name, value in zip("yz", session.run(None, {"x": x}), strict=True):
                assert got[name].tolist() == value.tolist()
