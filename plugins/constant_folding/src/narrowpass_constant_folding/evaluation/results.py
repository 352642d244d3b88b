"""Converts evaluated results to tensors of the types in the IR."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.inference import ResultType

_COPIED_BYTES = 1 << 16


class ResultError(Exception):
    """A result that contradicts what is known of its value."""


class NoTensorError(ResultError):
    """A sequence, or an empty optional."""


def to_tensor(result: Any, value: ir.Value, inferred: ResultType) -> ir.TensorProtocol:
    """Return `result` as a tensor named and typed as `value`.

    Args:
        result: what the operator's implementation gave.
        value: the node's output; its declared type counts where nothing is inferred.
        inferred: what the schema says of it.

    Raises:
        ResultError: another type or shape than the value has; `NoTensorError` for no tensor.
    """
    array = np.asarray(result) if np.isscalar(result) else result
    if not isinstance(array, np.ndarray):
        raise NoTensorError(f"{value.name!r} is no tensor")
    _check_shape(array, value, inferred)
    dtype = _dtype(value, inferred)
    if array.dtype.kind in "OUS" or dtype == ir.DataType.STRING:
        return _strings(array, value, dtype)
    array = _as_dtype(array, value, dtype)
    if array.base is not None and array.nbytes <= _COPIED_BYTES:
        array = array.copy()  # a small view would keep the large array that it is part of
    return ir.Tensor(array, dtype=dtype, name=value.name)


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the bytes that a tensor's data takes in a file; its data is read only for strings."""
    if tensor.dtype == ir.DataType.STRING:
        return int(tensor.nbytes)
    return -(-math.prod(tensor.shape.numpy()) * tensor.dtype.bitwidth // 8)


def _dtype(value: ir.Value, inferred: ResultType) -> ir.DataType | None:
    declared = None if value.dtype == ir.DataType.UNDEFINED else value.dtype
    if inferred.dtype is not None and declared is not None and declared != inferred.dtype:
        raise ResultError(
            f"{value.name!r} is declared {declared.name.lower()}, "
            f"its operator returns {inferred.dtype.name.lower()}"
        )
    return inferred.dtype or declared


def _check_shape(array: np.ndarray[Any, Any], value: ir.Value, inferred: ResultType) -> None:
    declared = None if value.shape is None else tuple(value.shape)
    for due in (inferred.dims, declared):
        if due is None:
            continue
        fits = len(due) == array.ndim and all(
            not isinstance(wanted, int) or wanted == dim
            for wanted, dim in zip(due, array.shape, strict=True)
        )
        if not fits:
            shape = ", ".join("?" if dim is None else str(dim) for dim in due)
            raise ResultError(f"{value.name!r} came out as {list(array.shape)}, [{shape}] is due")


def _as_dtype(
    array: np.ndarray[Any, Any], value: ir.Value, dtype: ir.DataType | None
) -> np.ndarray[Any, Any]:
    if dtype is None:
        return array
    due = dtype.numpy()
    if array.dtype == due:
        return array
    # Some reference operators compute in a wider type of the same kind and leave it at that.
    if array.dtype.kind == due.kind and array.dtype.kind in "iuf":
        return array.astype(due)
    raise ResultError(f"{value.name!r} came out as {array.dtype}, {dtype.name.lower()} is due")


def _strings(
    array: np.ndarray[Any, Any], value: ir.Value, dtype: ir.DataType | None
) -> ir.StringTensor:
    if dtype not in (None, ir.DataType.STRING):
        raise ResultError(f"{value.name!r} came out as text, {dtype} is due")
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
    return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=value.name)
