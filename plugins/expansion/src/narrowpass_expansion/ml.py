"""Operators of ai.onnx.ml: scaling, linear models, choice of columns, classifiers, tree ensembles.

Features of integers are computed with as float32, as onnxruntime does.

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

_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE}


def feature_matrix(e: Emitter) -> ir.Value:
    """Return X as floating point, with shape [rows, columns].

    Raises:
        Unsupported: its type or rank is not known.
    """
    x = e.required(0, "X")
    if e.rank(x, "X", 1, 2) == 1:
        x = e.with_dims(e.unsqueeze(x, 0), 1, *e.dims(x))
    return to_floating_point(e, x)


def to_floating_point(e: Emitter, x: ir.Value) -> ir.Value:
    """Return a tensor as float32, or unchanged if it is float64."""
    dtype = e.dtype(e.required(0, "X"))
    if dtype in _FLOATS:
        return x
    if dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise Unsupported(f"its input X is of {dtype.name.lower()}")
    return e.with_dims(e.cast(x, ir.DataType.FLOAT), *_known_dims(x))


def cast_to_float32(e: Emitter, value: ir.Value) -> ir.Value:
    """Cast a result computed from X to float32."""
    dtype = e.dtype(e.required(0, "X"))
    return e.cast(value, ir.DataType.FLOAT) if dtype == ir.DataType.DOUBLE else value


def float_dtype(e: Emitter) -> np.dtype[Any]:
    """Return the NumPy dtype of the result of `feature_matrix`."""
    double = e.dtype(e.required(0, "X")) == ir.DataType.DOUBLE
    return np.dtype(np.float64 if double else np.float32)


def _known_dims(value: ir.Value) -> tuple[int | str | None, ...]:
    dims = value.shape or ()
    return tuple(dim if isinstance(dim, int) else dim.value for dim in dims)


def scaler(e: Emitter) -> Sequence[ir.Value]:
    """Emit (X - offset) · scale, of each column or of all."""
    x = to_floating_point(e, e.required(0, "X"))
    offset, scale = (np.asarray(e.get(name, ()), np.float32) for name in ("offset", "scale"))
    if not offset.size or not scale.size:
        raise Unsupported("its offset or scale is left out")
    moved = e.op("Sub", x, e.const(_one_or_all(offset), float_dtype(e)))
    return [cast_to_float32(e, e.op("Mul", moved, e.const(_one_or_all(scale), float_dtype(e))))]


def _one_or_all(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return numbers.reshape(()) if numbers.size == 1 else numbers


def normalizer(e: Emitter) -> Sequence[ir.Value]:
    """Emit X over the norm of its rows: MAX (of the numbers as they are), L1 or L2.

    Where a norm is 0 the row stays, as in onnxruntime.
    """
    x, norm = feature_matrix(e), e.get("norm", "MAX")
    axes = e.const([1])
    if norm == "MAX":
        size = e.op("ReduceMax", x, axes)
    elif norm == "L1":
        size = e.op("ReduceL1", x, axes)
    elif norm == "L2":
        size = e.op("ReduceL2", x, axes)
    else:
        raise Unsupported(f"its norm is {norm}")
    zero, one = e.const(0.0, float_dtype(e)), e.const(1.0, float_dtype(e))
    safe = e.op("Where", e.op("Equal", size, zero), one, size)
    return [cast_to_float32(e, e.op("Div", x, safe))]


def binarizer(e: Emitter) -> Sequence[ir.Value]:
    """Emit X > threshold, as numbers of the type of X."""
    x = e.required(0, "X")
    dtype = e.dtype(x)
    if dtype not in _FLOATS:
        raise Unsupported(f"its input X is of {dtype.name.lower()}")
    threshold = e.const(np.float32(e.get("threshold", 0.0)), dtype)
    return [e.cast(e.op("Greater", x, threshold), dtype)]


def imputer(e: Emitter) -> Sequence[ir.Value]:
    """Emit other numbers in the place of NaN, or of a number, of each column or of all."""
    x = e.required(0, "X")
    dtype = e.dtype(x)
    if dtype in _FLOATS:
        values, wrong = e.get("imputed_value_floats", ()), e.get("replaced_value_float", 0.0)
    elif dtype == ir.DataType.INT64:
        values, wrong = e.get("imputed_value_int64s", ()), e.get("replaced_value_int64", 0)
    else:
        raise Unsupported(f"its input X is of {dtype.name.lower()}")
    if not len(values):
        raise Unsupported("it names no values to put in")
    single = np.float32(wrong) if dtype in _FLOATS else np.int64(wrong)
    missing = e.op("IsNaN", x) if np.isnan(single) else e.op("Equal", x, e.const(single, dtype))
    given = np.asarray(values, np.float32 if dtype in _FLOATS else np.int64)
    return [e.op("Where", missing, e.const(_one_or_all(given), dtype), x)]


def linear_regressor(e: Emitter) -> Sequence[ir.Value]:
    """Emit X · coefficients + intercepts."""
    if e.get("post_transform", "NONE") != "NONE":
        raise Unsupported(f"its post_transform is {e.get('post_transform', '')}")
    return [cast_to_float32(e, linear_scores(e, feature_matrix(e), int(e.get("targets", 1))))]


def linear_scores(e: Emitter, x: ir.Value, count: int) -> ir.Value:
    """Emit X · coefficients + intercepts of `count` results.

    Raises:
        Unsupported: there are not as many coefficients as results take.
    """
    weights = np.asarray(e.get("coefficients", ()), np.float32)
    biases = np.asarray(e.get("intercepts", ()), np.float32)
    if count < 1 or not weights.size or weights.size % count:
        raise Unsupported(f"{weights.size} coefficients are not those of {count} results")
    if biases.size not in (0, count):
        raise Unsupported(f"{biases.size} intercepts are not those of {count} results")
    matrix = ir.tensor(weights.reshape(count, -1).T.astype(float_dtype(e)), name="coefficients")
    bias = e.const(biases, float_dtype(e)) if biases.size else None
    return e.op("Gemm", x, e.weight("coefficients", matrix), bias)


def columns(e: Emitter) -> Sequence[ir.Value]:
    """Emit the choice of columns that Y names, as indices."""
    x, indices = e.required(0, "X"), e.required(1, "Y")
    found = e.rank(x, "X", *range(1, 7))
    flat = e.reshape(indices, -1)
    taken = e.op("Gather", x, flat, axis=found - 1)
    return [e.reshape(taken, 1, -1) if found == 1 else taken]


def vectorizer(e: Emitter) -> Sequence[ir.Value]:
    """Emit the columns of all inputs side by side, as float32."""
    given = [value for value in e.node.inputs if value is not None]
    sizes = e.get("inputdimensions", None)
    parts = []
    for index, value in enumerate(given):
        rank = e.rank(value, f"X[{index}]", 1, 2)
        if sizes is not None and _known_dims(value)[-1:] != (sizes[index],):
            raise Unsupported("its inputdimensions may cut off columns")
        row = e.unsqueeze(value, 0) if rank == 1 else value
        parts.append(e.cast(row, ir.DataType.FLOAT))
    if not parts:
        raise Unsupported("it has no inputs")
    return [e.op("Concat", *parts, axis=1)]


def svm_regressor(e: Emitter) -> Sequence[ir.Value]:
    """Emit a support vector machine's sum of kernels of X and its support vectors.

    The kernel RBF comes from |x|² + |s|² - 2 x·s, which rounds more than |x - s|²: by 2⁻²³ of the
    squared lengths.
    """
    if e.get("post_transform", "NONE") != "NONE" or e.get("one_class", 0):
        raise Unsupported("it has a post_transform, or one class")
    x, dtype = feature_matrix(e), float_dtype(e)
    weights = np.asarray(e.get("coefficients", ()), np.float32)
    bias = np.asarray(e.get("rho", ()), np.float32)
    if not weights.size or bias.size < 1:
        raise Unsupported("its coefficients or rho are left out")
    count = int(e.get("n_supports", 0))
    column = e.weight("coefficients", ir.tensor(weights.reshape(-1, 1).astype(dtype)))
    if count:
        vectors = np.asarray(e.get("support_vectors", ()), np.float32)
        if weights.size != count or not vectors.size or vectors.size % count:
            raise Unsupported(f"{vectors.size} numbers are not those of {count} support vectors")
        x = _kernel(e, x, vectors.reshape(count, -1).astype(dtype))
    return [cast_to_float32(e, e.op("Gemm", x, column, e.const(bias[:1], dtype)))]


def _kernel(e: Emitter, x: ir.Value, vectors: np.ndarray[Any, Any]) -> ir.Value:
    """Emit the kernel of each row of x and each support vector: [rows, vectors]."""
    dtype = vectors.dtype
    name = e.get("kernel_type", "LINEAR")
    gamma, offset, degree = (*map(float, e.get("kernel_params", ())), 0.0, 0.0, 0.0)[:3]
    along = e.op("MatMul", x, e.weight("vectors", ir.tensor(vectors.T.copy())))
    if name == "LINEAR":
        return along
    if name == "RBF":
        lengths = e.const((vectors.astype(np.float64) ** 2).sum(1), dtype)
        squares = e.op("ReduceSumSquare", x, e.const([1]))
        twice = e.op("Mul", along, e.const(2.0, dtype))
        apart = e.op("Sub", e.op("Add", squares, lengths), twice)
        return e.op("Exp", e.op("Mul", apart, e.const(-gamma, dtype)))
    moved = e.op("Add", e.op("Mul", along, e.const(gamma, dtype)), e.const(offset, dtype))
    if name == "POLY":
        return e.op("Pow", moved, e.const(degree, dtype))
    if name == "SIGMOID":
        return e.op("Tanh", moved)
    raise Unsupported(f"its kernel_type is {name}")


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
