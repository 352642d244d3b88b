"""Operators of ai.onnx.ml: linear models, trees, encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from narrowpass_testing.random_models._builder import Draft, Recipes

TABLE = Recipes()
DOMAIN = "ai.onnx.ml"


def floats(d: Draft, count: int) -> list[float]:
    """Draw coefficients."""
    return [float(np.float32(v)) for v in d.numbers.standard_normal(count)]


@TABLE.operators("ArrayFeatureExtractor", DOMAIN)
def _extractor(d: Draft) -> None:
    x = d.take(1, 3, fits=lambda a: a.size > 0)
    d.ints(d.numbers.integers(0, x.shape[-1], (1, d.pick(1, 3))))


@TABLE.operators("Binarizer", DOMAIN)
def _binarizer(d: Draft) -> None:
    d.take(1, 3)
    d.maybe("threshold", 0.0, 0.5)


@TABLE.operators("Normalizer", DOMAIN)
def _normalizer(d: Draft) -> None:
    d.take(2, 2, fits=lambda a: 0 not in a.shape)
    d.set("norm", d.pick("MAX", "L1", "L2"))


@TABLE.operators("Scaler", DOMAIN)
def _scaler(d: Draft) -> None:
    x = d.take(2, 2, fits=lambda a: 0 not in a.shape)
    count = d.pick(1, x.shape[1])
    d.set("offset", floats(d, count))
    d.set("scale", floats(d, count))


@TABLE.operators("Imputer", DOMAIN)
def _imputer(d: Draft) -> None:
    x = d.take(2, 2, among=("float", "int64"), fits=lambda a: 0 not in a.shape)
    if x.dtype.kind == "i":
        d.set("imputed_value_int64s", [3] * d.pick(1, x.shape[1]))
        d.set("replaced_value_int64", int(x.flat[0]))
    else:
        d.set("imputed_value_floats", [1.5] * d.pick(1, x.shape[1]))
        d.set("replaced_value_float", float(x.flat[0]))


@TABLE.operators("OneHotEncoder", DOMAIN)
def _one_hot(d: Draft) -> None:
    d.take(1, 2, among=("int64", "float", "int32"))
    d.set("cats_int64s", [-2, 0, 1, 5])
    d.set("zeros", 1)


@TABLE.operators("LabelEncoder", DOMAIN)
def _label_encoder(d: Draft) -> None:
    d.take(1, 2, among=("int64",))
    d.set("keys_int64s", [-1, 0, 2, 3])
    if d.chance(0.5):
        d.set("values_floats", floats(d, 4))
        d.set("default_float", -7.5)
    else:
        d.set("values_int64s", [5, 6, 7, 8])
        d.set("default_int64", -7)


@TABLE.operators("LinearRegressor", DOMAIN)
def _linear_regressor(d: Draft) -> None:
    x = d.take(2, 2, among=("float",), fits=lambda a: 0 not in a.shape)
    targets = d.pick(1, 2)
    d.set("coefficients", floats(d, targets * x.shape[1]))
    d.set("intercepts", floats(d, targets))
    d.set("targets", targets)
    d.maybe("post_transform", "NONE", "SOFTMAX", "LOGISTIC")


@TABLE.operators("LinearClassifier", DOMAIN)
def _linear_classifier(d: Draft) -> None:
    x = d.take(2, 2, among=("float",), fits=lambda a: 0 not in a.shape)
    classes = d.pick(2, 3)
    d.set("coefficients", floats(d, classes * x.shape[1]))
    d.set("intercepts", floats(d, classes))
    d.set("classlabels_ints", list(range(classes)))
    d.set("multi_class", 1)
    d.maybe("post_transform", "NONE", "SOFTMAX", "LOGISTIC")
    d.outputs = 2


@TABLE.operators("SVMRegressor", DOMAIN)
def _svm_regressor(d: Draft) -> None:
    x = d.take(2, 2, among=("float",), fits=lambda a: 0 not in a.shape)
    count = d.pick(1, 3)
    d.set("kernel_type", d.pick("LINEAR", "RBF", "POLY", "SIGMOID"))
    d.set("kernel_params", [0.3, 0.5, 2.0])
    d.set("support_vectors", floats(d, count * x.shape[1]))
    d.set("coefficients", floats(d, count))
    d.set("n_supports", count)
    d.set("rho", floats(d, 1))


@TABLE.operators("TreeEnsembleRegressor TreeEnsembleClassifier", DOMAIN)
def _trees(d: Draft) -> None:
    """Trees of one decision and two leaves."""
    x = d.take(2, 2, among=("float",), fits=lambda a: 0 not in a.shape)
    count = d.pick(1, 3)
    mode = d.pick("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")
    rows = [(t, n) for t in range(count) for n in range(3)]
    leaf = [n > 0 for _, n in rows]
    d.set("nodes_treeids", [t for t, _ in rows])
    d.set("nodes_nodeids", [n for _, n in rows])
    d.set("nodes_modes", ["LEAF" if is_leaf else mode for is_leaf in leaf])
    d.set("nodes_truenodeids", [0 if is_leaf else 1 for is_leaf in leaf])
    d.set("nodes_falsenodeids", [0 if is_leaf else 2 for is_leaf in leaf])
    d.set("nodes_featureids", [0 if f else d.random.randrange(x.shape[1]) for f in leaf])
    values = floats(d, len(rows))
    d.set("nodes_values", [0.0 if f else v for f, v in zip(leaf, values, strict=True)])
    regressor = d.schema.name == "TreeEnsembleRegressor"
    kind = "target" if regressor else "class"
    leaves = [row for row in rows if row[1]]
    classes = d.pick(1, 2) if regressor else 3
    d.set(f"{kind}_treeids", [t for t, _ in leaves])
    d.set(f"{kind}_nodeids", [n for _, n in leaves])
    d.set(f"{kind}_ids", [d.random.randrange(classes) for _ in leaves])
    d.set(f"{kind}_weights", floats(d, len(leaves)))
    if regressor:
        d.set("n_targets", classes)
        d.maybe("aggregate_function", "SUM", "AVERAGE", "MIN", "MAX")
    else:
        d.set("classlabels_int64s", [4, 5, 6])
        d.outputs = 2
    d.maybe("post_transform", "NONE", "SOFTMAX", "LOGISTIC")


@TABLE.operators("TreeEnsemble", DOMAIN)
def _tree_ensemble(d: Draft) -> None:
    x = d.take(2, 2, fits=lambda a: 0 not in a.shape)
    count = d.pick(1, 2)

    def tensor(values: list[float], dtype: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values).astype(dtype))

    d.set("n_targets", 2)
    d.set("tree_roots", list(range(count)))
    d.set("nodes_featureids", [d.random.randrange(x.shape[1]) for _ in range(count)])
    d.set("nodes_modes", tensor([d.pick(0, 1, 2, 3)] * count, np.uint8))
    d.set("nodes_splits", tensor(floats(d, count), x.dtype))
    d.set("nodes_truenodeids", [2 * t for t in range(count)])
    d.set("nodes_falsenodeids", [2 * t + 1 for t in range(count)])
    d.set("nodes_trueleafs", [1] * count)
    d.set("nodes_falseleafs", [1] * count)
    d.set("leaf_targetids", [d.pick(0, 1) for _ in range(2 * count)])
    d.set("leaf_weights", tensor(floats(d, 2 * count), x.dtype))
    d.maybe("aggregate_function", 0, 1, 2, 3)
    d.maybe("post_transform", 0)
