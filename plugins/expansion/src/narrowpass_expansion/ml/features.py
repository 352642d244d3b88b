"""Operators of ai.onnx.ml on rows of features: scaling, linear models, choice of columns.

Features of integers are computed with as float32, as onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported

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
