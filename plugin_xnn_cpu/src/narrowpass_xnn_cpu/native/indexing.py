"""Parameters of Gather and Scatter variants, TopK and copies by index tables, for C."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.kernels import dense_strides
from narrowpass_xnn_cpu.native.library import extension

Shape = tuple[int, ...]

REDUCTIONS = ("none", "add", "mul", "min", "max")
"""Reductions of Scatter: names of ``NP_SCATTER_*``."""

TYPES = ("float32", "float64", "int32", "int64")
"""Types that Scatter reduces and TopK orders: those that ``csrc/movement`` has code for."""


def gather_elements(
    data: Shape,
    indices: Shape,
    axis: int,
    dtype: np.dtype[Any],
    index_size: int,
    reduction: str = "none",
) -> Any:
    """Return the parameters of ``NP_GATHER_ELEMENTS`` and ``NP_SCATTER_ELEMENTS``.

    Args:
        data: shape of the data.
        indices: shape of the indices, and of the updates of a scatter.
        axis: the axis of the indices, not negative.
        dtype: of the data.
        index_size: bytes of an index, 4 or 8.
        reduction: one of `REDUCTIONS`.

    Raises:
        BackendError: shapes that do not match, or too many axes.
    """
    if len(data) != len(indices) or not 1 <= len(data) <= extension().lib.NP_MAX_DIMS:
        raise BackendError(f"indices {list(indices)} do not fit {list(data)}")
    pairs = enumerate(zip(data, indices, strict=True))
    if any(dim != axis and given > size for dim, (size, given) in pairs):
        raise BackendError(f"indices {list(indices)} do not fit {list(data)} beside axis {axis}")
    params = calls.parameters("NP_GATHER_ELEMENTS")
    params.rank, params.axis, params.axis_size = len(data), axis, data[axis]
    params.sizes[0 : len(indices)] = list(indices)
    params.strides[0 : len(data)] = list(dense_strides(data))
    _finish(params, math.prod(data), dtype, index_size, reduction)
    return params


def gather_nd(
    data: Shape,
    indices: Shape,
    batched: int,
    dtype: np.dtype[Any],
    index_size: int,
    reduction: str = "none",
) -> Any:
    """Return the parameters of ``NP_GATHER_ND`` and ``NP_SCATTER_ND``.

    Args:
        data: shape of the data.
        indices: shape of the indices; the last axis has the indices of a tuple.
        batched: ``batch_dims``, leading axes that both have.
        dtype: of the data.
        index_size: bytes of an index, 4 or 8.
        reduction: one of `REDUCTIONS`.

    Raises:
        BackendError: shapes that do not match, or too many axes.
    """
    if len(indices) <= batched or data[:batched] != indices[:batched]:
        raise BackendError(f"indices {list(indices)} do not fit {list(data)}")
    depth = indices[-1]
    if batched + depth > len(data) or len(data) > extension().lib.NP_MAX_DIMS:
        raise BackendError(f"tuples of {depth} indices do not fit {list(data)}")
    strides = [stride * dtype.itemsize for stride in dense_strides(data)]
    params = calls.parameters("NP_GATHER_ND")
    params.batches, params.tuples = math.prod(data[:batched]), math.prod(indices[batched:-1])
    params.depth, params.row = depth, math.prod(data[batched + depth :])
    params.sizes[0:depth] = list(data[batched : batched + depth])
    params.strides[0:depth] = strides[batched : batched + depth]
    params.batch_stride = math.prod(data[batched:]) * dtype.itemsize
    _finish(params, math.prod(data), dtype, index_size, reduction)
    return params


def _type(dtype: np.dtype[Any]) -> int:
    if dtype.name not in TYPES:
        raise BackendError(f"elements of {dtype.name} are neither reduced nor ordered")
    return calls.constant("NP_TYPE", dtype.name)


def _finish(params: Any, count: int, dtype: np.dtype[Any], index_size: int, reduction: str) -> None:
    if dtype.itemsize not in (1, 2, 4, 8) or index_size not in (4, 8):
        raise BackendError(f"a kernel takes no {dtype.name} at indices of {index_size} bytes")
    params.data_bytes, params.element_size = count * dtype.itemsize, dtype.itemsize
    params.index_size, params.reduction = index_size, calls.constant("NP_SCATTER", reduction)
    params.type = _type(dtype) if reduction != "none" else 0


def top_k(shape: Shape, axis: int, count: int, dtype: np.dtype[Any], *, largest: bool) -> Any:
    """Return the parameters of ``NP_TOP_K``.

    Args:
        shape: of the input.
        axis: the axis, not negative.
        count: K.
        dtype: one of `TYPES`.
        largest: whether the largest elements are selected, else the smallest.

    Raises:
        BackendError: more elements than there are.
    """
    if not 0 <= count <= shape[axis]:
        raise BackendError(f"{count} elements of {shape[axis]} are wanted along axis {axis}")
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    fields = outer, shape[axis], inner, count, int(largest), _type(dtype)
    return calls.parameters("NP_TOP_K", fields)


def indexed_copy(
    tables: Sequence[np.ndarray[Any, Any]], strides: Sequence[int], element_size: int
) -> Any:
    """Return the parameters of ``NP_INDEXED_COPY``.

    Args:
        tables: for each axis of the output, the index of the input for each position.
        strides: of the input, in elements.
        element_size: in bytes.

    Raises:
        BackendError: no axes or too many, or elements of an unsupported size.
    """
    most = extension().lib.NP_MAX_DIMS
    if not 1 <= len(tables) <= most:
        raise BackendError(f"a kernel takes 1 to {most} dimensions, not {len(tables)}")
    if element_size not in (1, 2, 4, 8):
        raise BackendError(f"a kernel takes elements of 1, 2, 4 or 8 bytes, not {element_size}")
    last = tables[-1]
    # The longest contiguous part of a row of the input.
    ends = [0, *(np.flatnonzero(np.diff(last) != 1) + 1).tolist(), last.size]
    plain, first = 0, 0
    if strides[-1] == 1:
        plain, first = max((end - at, at) for at, end in itertools.pairwise(ends))
    sizes = [table.size for table in tables]
    fields = {
        "rank": len(tables),
        "sizes": sizes,
        "in_strides": list(strides),
        "starts": list(itertools.accumulate(sizes[:-1], initial=0)),
        "first": first,
        "plain": plain,
        "element_size": element_size,
        "tables": [index for table in tables for index in table.tolist()],
    }
    return calls.parameters("NP_INDEXED_COPY", fields)
