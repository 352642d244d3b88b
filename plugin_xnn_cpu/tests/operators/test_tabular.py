"""Operators of ai.onnx.ml on rows of features, against onnxruntime's kernels.

The tolerance is 1e-6 of an output's largest element, and 1e-5 for kernels of support vectors, whose
distances come from three terms that cancel.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from tree_kit import agree, ml_model

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
FLOAT = TensorProto.FLOAT


def rows(count=7, features=5, dtype=np.float32):
    return (RNG.standard_normal((count, features)) * 3).astype(dtype)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 5), (1, 5)])
def test_scaler(dtype, sizes):
    named = {"offset": numbers(sizes[0]), "scale": numbers(sizes[1])}
    if sizes[0] != sizes[1]:  # onnxruntime takes one length only
        named["offset"] *= 5
    x = rows(dtype=dtype)
    agree(ml_model("Scaler", x, {"y": (FLOAT, [None, 5])}, **named), {"x": x})


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_normalizer(norm, dtype):
    x = np.abs(rows(dtype=dtype)) if norm == "MAX" else rows(dtype=dtype)
    x[2] = 0
    agree(ml_model("Normalizer", x, {"y": (FLOAT, [None, 5])}, norm=norm), {"x": x})


def test_binarizer():
    x = np.array([[0.5, 1, 1.5, np.inf, -np.inf]], np.float32)
    model = ml_model("Binarizer", x, {"y": (FLOAT, [None, 5])}, threshold=1.0)
    agree(model, {"x": x})


@pytest.mark.parametrize("wrong", [float("nan"), -1.0])
@pytest.mark.parametrize("size", [1, 5])
def test_imputer_of_floats(wrong, size):
    x = rows()
    x[1, 2] = x[3, 4] = wrong
    named = {"imputed_value_floats": numbers(size), "replaced_value_float": wrong}
    agree(ml_model("Imputer", x, {"y": (FLOAT, [None, 5])}, **named), {"x": x})


def test_imputer_of_integers():
    x = RNG.integers(-2, 3, (7, 5))
    named = {"imputed_value_int64s": [10, 20, 30, 40, 50], "replaced_value_int64": -1}
    outputs = {"y": (TensorProto.INT64, [None, 5])}
    agree(ml_model("Imputer", x, outputs, **named), {"x": x})


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_regressor(targets, bias):
    named = {"coefficients": numbers(targets, 5), "targets": targets}
    if bias:
        named["intercepts"] = numbers(targets)
    x = rows()
    model = ml_model("LinearRegressor", x, {"y": (FLOAT, [None, targets])}, **named)
    agree(model, {"x": x})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("strings", [False, True])
def test_linear_classifier(transform, classes, strings):
    named = {"coefficients": numbers(classes, 5), "intercepts": numbers(classes)}
    named["post_transform"] = transform
    label = TensorProto.STRING if strings else TensorProto.INT64
    if strings:
        named["classlabels_strings"] = [f"class {i}" for i in range(classes)]
    else:
        named["classlabels_ints"] = [3 * i + 1 for i in range(classes)]
    outputs = {"label": (label, [None]), "y": (FLOAT, [None, classes])}
    x = rows(400)
    found, _ = agree(ml_model("LinearClassifier", x, outputs, **named), {"x": x})
    assert len(set(found)) == classes


def test_linear_classifier_of_one_score():
    named = {"coefficients": numbers(5), "intercepts": numbers(1), "classlabels_ints": [3, 8]}
    outputs = {"label": (TensorProto.INT64, [None]), "y": (FLOAT, [None, 2])}
    x = rows(40)
    model = ml_model("LinearClassifier", x, outputs, post_transform="LOGISTIC", **named)
    found, _ = agree(model, {"x": x})
    assert set(found) == {3, 8}


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        ("LINEAR", [0.0, 0.0, 0.0]),
        ("RBF", [0.05, 0.0, 0.0]),
        ("POLY", [0.05, 1.0, 3.0]),
        ("SIGMOID", [0.05, 0.1, 0.0]),
    ],
)
def test_svm_regressor(kernel, parameters):
    x = rows(30)
    model = ml_model(
        "SVMRegressor",
        x,
        {"y": (FLOAT, [None, 1])},
        kernel_type=kernel,
        kernel_params=parameters,
        support_vectors=numbers(11, 5),
        coefficients=numbers(11),
        n_supports=11,
        rho=[0.3],
    )
    agree(model, {"x": x}, 1e-5)


def test_array_feature_extractor():
    x, columns = rows(), np.array([4, 0, 4])
    outputs = {"y": (FLOAT, [None, 3])}
    model = ml_model("ArrayFeatureExtractor", x, outputs, more={"columns": columns})
    agree(model, {"x": x, "columns": columns})


def test_feature_vectorizer():
    x, other = rows(), rows(7, 3)
    outputs = {"y": (FLOAT, [None, 8])}
    named = {"inputdimensions": [5, 3]}
    model = ml_model("FeatureVectorizer", x, outputs, more={"other": other}, **named)
    agree(model, {"x": x, "other": other})


def test_a_pipeline_as_converters_write_it():
    """Imputer, Scaler, LinearClassifier, Normalizer: no node has another domain afterwards."""
    # onnxruntime's logistic function is 1 - f(-x) in float32: no digit is left for x below -16.
    x = rows(20) / 8
    x[0, 0] = np.nan
    nodes = [
        helper.make_node(
            "Imputer",
            ["x"],
            ["filled"],
            domain="ai.onnx.ml",
            imputed_value_floats=numbers(5),
            replaced_value_float=float("nan"),
        ),
        helper.make_node(
            "Scaler",
            ["filled"],
            ["scaled"],
            domain="ai.onnx.ml",
            offset=numbers(5),
            scale=[0.5] * 5,
        ),
        helper.make_node(
            "LinearClassifier",
            ["scaled"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=numbers(3, 5),
            intercepts=numbers(3),
            classlabels_ints=[0, 1, 2],
            post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["scores"], ["y"], domain="ai.onnx.ml", norm="L1"),
    ]
    model = ml_model("Scaler", x, {"label": (TensorProto.INT64, [None]), "y": (FLOAT, [None, 3])})
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    agree(model, {"x": x})
