"""Elements and slices by index, and the greatest; oracle: numpy, bit for bit."""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, Cases
from elementwise_cases import numbers
from movement_cases import SIZED, indices_of

from narrowpass_xnn_cpu.native import indexing

CASES = Cases()
ADDED = {"none": None, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
UPDATES = {
    "axis": (0, 1, 2),
    "first": (1, 2, 5),
    "index_size": (4, 8),
}


def along(kernel, first, rows, columns, axis, few, dtype, index_size, unique=False):
    """Return data, indices along an axis, and the data beside these."""
    shape = (first, rows, columns)
    data = numbers(kernel, dtype, *shape)
    wanted = [max(0, size - few) for size in shape]
    if unique:
        order = kernel.rng.random(shape).argsort(axis)
        indices = order[tuple(map(slice, wanted))]
        indices = indices - shape[axis] * (indices % 2)  # odd ones count from the end
    else:
        wanted[axis] = shape[axis] + few
        indices = indices_of(kernel, wanted, shape[axis], index_size)
    beside = tuple(
        slice(None) if dim == axis else slice(size) for dim, size in enumerate(indices.shape)
    )
    return data, indices.astype(f"int{8 * index_size}"), beside


@CASES.of(
    "NP_GATHER_ELEMENTS",
    columns=(*EDGES[1:], 8191, 8193),
    rows=EDGES[1:],
    few=(0, 1, 3),
    dtype=SIZED[:4],
    **UPDATES,
)
def gather_elements(kernel, columns, rows, few, dtype, axis, first, index_size):
    if columns > 999 and rows > 20:
        return
    data, indices, beside = along(kernel, first, rows, columns, axis, few, dtype, index_size)
    expected = np.take_along_axis(data[beside], indices, axis)
    params = indexing.gather_elements(data.shape, indices.shape, axis, data.dtype, index_size)
    kernel.expect(params, [data, indices], expected)


@CASES.of(
    "NP_SCATTER_ELEMENTS",
    columns=EDGES[1:],
    rows=EDGES[1:],
    few=(0, 1, 3),
    dtype=("float32", "float64", "int32", "int64"),
    how=tuple(ADDED),
    **UPDATES,
)
def scatter_elements(kernel, columns, rows, few, dtype, how, axis, first, index_size):
    """Several updates of one element only where these commute."""
    data, indices, _ = along(
        kernel, first, rows, columns, axis, few, dtype, index_size, unique=how in ("none", "mul")
    )
    updates, expected = numbers(kernel, dtype, *indices.shape), data.copy()
    places = list(np.indices(indices.shape))
    places[axis] = indices
    if how == "none":
        expected[tuple(places)] = updates
    else:
        ADDED[how].at(expected, tuple(places), updates)
    params = indexing.gather_elements(data.shape, indices.shape, axis, data.dtype, index_size, how)
    kernel.expect(params, [data, indices, updates], expected)


def tuples_of(kernel, shape, count, index_size):
    """Return tuples of indices into axes of `shape`: [*count, depth]."""
    parts = [indices_of(kernel, count, size, index_size) for size in shape]
    dtype = np.int32 if index_size == 4 else np.int64
    return np.stack(parts, -1) if parts else np.zeros((*count, 0), dtype)


@CASES.of(
    "NP_GATHER_ND",
    tuples=EDGES,
    row=EDGES,
    depth=(0, 1, 2, 3),
    batches=(0, 1, 3),
    index_size=(4, 8),
    dtype=SIZED[:4],
)
def gather_nd(kernel, tuples, row, depth, batches, index_size, dtype):
    """Batches of 0 stand for none: `batch_dims` of 0."""
    inner = (5, 3, 4)[:depth]
    lead = (batches,) if batches else ()
    data = numbers(kernel, dtype, *lead, *inner, row)
    indices = tuples_of(kernel, inner, (*lead, tuples), index_size)
    pick = tuple(np.moveaxis(indices, -1, 0))
    if lead:
        pick = (np.broadcast_to(np.arange(batches)[:, None], (batches, tuples)), *pick)
    expected = data[pick] if pick else np.broadcast_to(data, (tuples, row))
    params = indexing.gather_nd(data.shape, indices.shape, len(lead), data.dtype, index_size)
    kernel.expect(params, [data, indices], expected)


@CASES.of(
    "NP_SCATTER_ND",
    tuples=EDGES,
    row=EDGES,
    depth=(1, 2, 3),
    how=tuple(ADDED),
    index_size=(4, 8),
    dtype=("float32", "float64", "int32", "int64"),
)
def scatter_nd(kernel, tuples, row, depth, how, index_size, dtype):
    inner = (23, 11, 2)[:depth]
    data = numbers(kernel, dtype, *inner, row)
    indices = tuples_of(kernel, inner, (tuples,), index_size)
    if how in ("none", "mul"):  # no element is updated twice
        keys = [tuple(np.mod(index, inner)) for index in indices]
        indices = indices[sorted({key: at for at, key in enumerate(keys)}.values())]
    updates, expected = numbers(kernel, dtype, len(indices), row), data.copy()
    places = tuple(indices.T)
    if how == "none":
        expected[places] = updates
    else:
        ADDED[how].at(expected, places, updates)
    params = indexing.gather_nd(data.shape, indices.shape, 0, data.dtype, index_size, how)
    kernel.expect(params, [data, indices, updates], expected)


@CASES.of(
    "NP_TOP_K",
    size=EDGES[1:],
    inner=EDGES,
    outer=(0, 1, 3),
    share=(0, 1, 2, 3),
    largest=(False, True),
    dtype=indexing.TYPES,
)
def top_k(kernel, size, inner, outer, share, largest, dtype):
    """Of equal elements the first ones; a few, one, half and all of them."""
    count = (min(3, size), 1, (size + 1) // 2, size)[share]
    x = numbers(kernel, dtype, outer, size, inner)
    order = np.argsort(-x if largest else x, 1, kind="stable")[:, :count]
    values = np.take_along_axis(x, order, 1)
    before = np.zeros((2, outer * count * inner), np.int64)
    expected = before.copy()
    expected[0].view(dtype)[: values.size] = values.reshape(-1)
    expected[1] = order.reshape(-1)
    params = indexing.top_k(x.shape, 1, count, x.dtype, largest=largest)
    kernel.expect(params, [x], expected, before=before)
