"""Columns of Arrow as numpy arrays and back; without copies where the layouts allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from narrowpass.errors import DataError
from narrowpass_ray.rows import Array, Column

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def column_of(array: pa.Array) -> Column:
    """Return a column without nulls, for numpy.

    Numbers are an array; lists of equal lengths an array with more axes; others a list with a value
    for each row.

    Raises:
        DataError: there are nulls within the rows.
    """
    if isinstance(array, pa.FixedShapeTensorArray):
        found: Array = array.to_numpy_ndarray()
        return found
    if isinstance(array.type, pa.BaseExtensionType):
        # Ray's own tensors become arrays by themselves.
        tensors = array.to_numpy(zero_copy_only=False)
        return list(tensors) if tensors.dtype.hasobject else tensors
    if any(is_list(array.type) for is_list in _LISTS):
        return _nested(array)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers
    if pa.types.is_boolean(array.type):
        flags: Array = array.to_numpy(zero_copy_only=False).astype(bool)
        return flags
    return list(array.to_pylist())


def _nested(array: pa.Array) -> Column:
    values = array.flatten()
    if values.null_count:
        raise DataError("a list has a null among its elements")
    lengths = (
        np.full(len(array), array.type.list_size)
        if pa.types.is_fixed_size_list(array.type)
        else np.diff(array.offsets.to_numpy())
    )
    inner = column_of(values)
    if len(array) and (lengths == lengths[0]).all() and isinstance(inner, np.ndarray):
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    ends = np.cumsum(lengths)
    return [inner[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def array_of(column: Column) -> pa.Array:
    """Return a column for Arrow, with nested lists for arrays; None becomes null."""
    if isinstance(column, np.ndarray):
        return _lists(plain(column))
    known = [value for value in column if value is not None]
    if known and all(isinstance(value, np.ndarray | np.generic) for value in known):
        return _ragged([None if value is None else plain(np.asarray(value)) for value in column])
    return pa.array(column)


def plain(array: Array) -> Array:
    """Return an array in a type that Arrow has: narrow floats but float16 become float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _lists(array: Array) -> pa.Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    found = pa.array(flat.tolist() if flat.dtype.hasobject else flat)
    for axis in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:axis], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int64) * array.shape[axis]
        found = pa.LargeListArray.from_arrays(offsets, found)
    return found


def _ragged(rows: Sequence[Array | None]) -> pa.Array:
    """Return arrays of one rank and several shapes as nested lists."""
    known = [row for row in rows if row is not None]
    if len({(row.ndim, row.dtype) for row in known}) > 1:
        return pa.array([None if row is None else row.tolist() for row in rows])
    if not known[0].ndim:
        return pa.array([None if row is None else row[()] for row in rows], _type(known[0]))
    parts = [_lists(row) for row in known]
    inner = pa.concat_arrays(parts)
    lengths = [None if row is None else len(row) for row in rows]
    offsets: list[Any] = []
    end = 0
    for length in lengths:
        offsets.append(None if length is None else end)
        end += length or 0
    return pa.LargeListArray.from_arrays(pa.array([*offsets, end], pa.int64()), inner)


def _type(value: Array) -> pa.DataType:
    return pa.from_numpy_dtype(value.dtype)


def result_type(dtype: str, rank: int) -> pa.DataType | None:
    """Return the type of an output's column, for a shard where no row could be computed.

    Args:
        dtype: the element type as `ValueSpec` has it.
        rank: of the output, with the axis of the rows.

    Returns:
        None where it is no type of numbers.
    """
    import onnx_ir as ir

    try:
        element = ir.DataType[dtype.upper()].numpy()
    except KeyError:
        return None
    if element.hasobject:
        return None
    found = pa.from_numpy_dtype(plain(np.zeros(1, element)).dtype)
    for _ in range(rank - 1):
        found = pa.large_list(found)
    return found
