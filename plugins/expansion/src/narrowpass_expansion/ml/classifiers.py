"""Classifiers and tree ensembles of ai.onnx.ml: scores, post-transforms and labels.

A tree ensemble stays one operator that computes the scores of all rows; `post_transform` and labels
become operators of ONNX. Where the specification leaves cases of two classes open, results are
those of onnxruntime, or the node is not expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import AlreadyExpanded, Emitter, Unsupported
from narrowpass_expansion.ml.features import (
    cast_to_float32,
    feature_matrix,
    float_dtype,
    linear_scores,
)

DOMAIN = "ai.onnx.ml"

_NODES = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_values",
    "nodes_values_as_tensor",
    "nodes_modes",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_missing_value_tracks_true",
)
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""`post_transform` of TreeEnsemble, by number."""


def tree_regressor(e: Emitter) -> Sequence[ir.Value]:
    """Emit an ensemble without post-transform, and the post-transform."""
    return _raw_scores(e, "NONE", e.get("post_transform", "NONE"))


def tree_ensemble(e: Emitter) -> Sequence[ir.Value]:
    """Emit the same for TreeEnsemble of version 5, whose `post_transform` is a number."""
    number = int(e.get("post_transform", 0))
    if not 0 <= number < len(_TRANSFORMS):
        raise Unsupported(f"its post_transform is {number}")
    return _raw_scores(e, 0, _TRANSFORMS[number])


def _raw_scores(e: Emitter, none: int | str, transform: str) -> Sequence[ir.Value]:
    count = int(e.get("n_targets", 1))
    x = feature_matrix(e)
    if x is e.required(0, "X") and transform == "NONE":
        raise AlreadyExpanded
    if count == 1 and transform != "NONE":
        # onnxruntime and the specification disagree.
        raise Unsupported(f"its post_transform is {transform}, of one target")
    given = {name: attribute.value for name, attribute in e.node.attributes.items()}
    given["post_transform"] = none
    scores = e.with_dims(e.op_in_domain(DOMAIN, e.node.op_type, x, **given), _rows(e), count)
    return [apply_post_transform(e, scores, transform)]


def _rows(e: Emitter) -> int | str | None:
    dims = e.dims(e.required(0, "X"))
    return dims[0] if len(dims) == 2 else 1


def apply_post_transform(e: Emitter, scores: ir.Value, transform: str) -> ir.Value:
    """Emit `post_transform` of the scores of several classes or targets.

    Raises:
        Unsupported: another transform than NONE, LOGISTIC and SOFTMAX.
    """
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return e.op("Sigmoid", scores)
    if transform == "SOFTMAX":
        return e.op("Softmax", scores, axis=1)
    raise Unsupported(f"its post_transform is {transform}")


def tree_classifier(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit the scores of all classes by an ensemble, then the labels."""
    labels = _labels(e, "classlabels_int64s")
    ids = np.asarray(e.get("class_ids", ()), np.int64)
    weights = e.get("class_weights_as_tensor", None)
    weights = e.get("class_weights", ()) if weights is None else weights.numpy()
    base = e.get("base_values_as_tensor", None)
    base = e.get("base_values", ()) if base is None else base.numpy()
    transform = e.get("post_transform", "NONE")
    present = set(ids.tolist())
    if len(labels) == 2:
        return _two_classes(e, labels, present, np.asarray(weights), np.asarray(base), transform)
    if len(labels) < 2 or present != set(range(len(labels))):
        raise Unsupported("it has one class, or a class that no leaf has a weight for")
    scores = _scores(e, len(labels), None, with_base=len(base) == len(labels))
    return [_argmax_label(e, labels, scores), apply_post_transform(e, scores, transform)]


def _two_classes(
    e: Emitter,
    labels: Sequence[int] | Sequence[str],
    present: set[int],
    weights: np.ndarray[Any, Any],
    base: np.ndarray[Any, Any],
    transform: str,
) -> Sequence[ir.Value | None]:
    """Emit the two classes of an ensemble with one score for both."""
    if present != {0} or base.size > 1 or transform not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise Unsupported("its two classes have weights that implementations take differently")
    score = _scores(e, 1, 0, with_base=bool(base.size))
    shares = not (weights < 0).any()  # of trees that vote: the score is the share of one class
    most = e.const(np.float32(0.5 if shares else 0), np.float32)
    chosen = e.op("Greater", e.op("Squeeze", score, e.const([1])), most)
    label = _label_at(e, labels, e.cast(chosen, ir.DataType.INT64))
    if transform == "LOGISTIC":
        both = e.op("Sigmoid", e.op("Concat", e.op("Neg", score), score, axis=1))
    elif shares:
        one = e.const(np.float32(1), np.float32)
        both = e.op("Concat", e.op("Sub", one, score), score, axis=1)
    else:
        both = e.op("Concat", e.op("Neg", score), score, axis=1)
    return [label, both]


def _scores(e: Emitter, count: int, target: int | None, *, with_base: bool) -> ir.Value:
    """Emit the ensemble as one of targets: float32 [rows, count]."""
    named = {name: e.get(name, None) for name in _NODES}
    for name in ("treeids", "nodeids", "ids", "weights", "weights_as_tensor"):
        named[f"target_{name}"] = e.get(f"class_{name}", None)
    if target is not None:
        named["target_ids"] = [target] * len(e.get("class_ids", ()))
    for name in ("base_values", "base_values_as_tensor") if with_base else ():
        named[name] = e.get(name, None)
    x = feature_matrix(e)
    output = e.op_in_domain(DOMAIN, "TreeEnsembleRegressor", x, n_targets=count, **named)
    return e.with_dims(output, _rows(e), count)


def _labels(e: Emitter, integers: str) -> Sequence[int] | Sequence[str]:
    strings = e.get("classlabels_strings", ())
    found: Sequence[int] | Sequence[str] = strings if len(strings) else e.get(integers, ())
    return found


def _argmax_label(e: Emitter, labels: Sequence[int] | Sequence[str], scores: ir.Value) -> ir.Value:
    """Emit the label of the class of the greatest score; of the first one of several."""
    return _label_at(e, labels, e.op("ArgMax", scores, axis=1, keepdims=0))


def _label_at(e: Emitter, labels: Sequence[int] | Sequence[str], index: ir.Value) -> ir.Value:
    texts = [str(label).encode() for label in labels]
    if not isinstance(labels[0], int):
        table = ir.StringTensor(texts, shape=ir.Shape([len(texts)]), name="labels")
        return e.op("Gather", e.weight("labels", table), index, axis=0)
    if list(labels) == list(range(len(labels))):
        return index
    return e.op("Gather", e.const(labels), index, axis=0)


def linear_classifier(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit the scores of a linear model, then the labels."""
    labels = _labels(e, "classlabels_ints")
    count = len(e.get("intercepts", ())) or len(labels)
    transform = e.get("post_transform", "NONE")
    if len(labels) < 2 or count not in (1, len(labels)) or (count == 1 and len(labels) != 2):
        raise Unsupported(f"it has {count} scores for {len(labels)} classes")
    x = feature_matrix(e)
    scores = linear_scores(e, x, count)
    if float_dtype(e).itemsize == 8:
        scores = cast_to_float32(e, scores)
    if count == len(labels):
        return [_argmax_label(e, labels, scores), apply_post_transform(e, scores, transform)]
    if transform not in ("NONE", "LOGISTIC"):
        raise Unsupported(f"its post_transform is {transform}, of one score for two classes")
    most = e.const(np.float32(0), np.float32)
    above = e.op("Greater", e.op("Squeeze", scores, e.const([1])), most)
    both = e.op("Concat", e.op("Neg", scores), scores, axis=1)
    label = _label_at(e, labels, e.cast(above, ir.DataType.INT64))
    return [label, apply_post_transform(e, both, transform)]
