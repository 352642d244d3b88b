"""Copies, choices and rows by index; oracle: numpy, bit for bit."""

from __future__ import annotations

import numpy as np
from edge_kit import EDGES, Cases
from elementwise_cases import numbers

from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.indexing import indexed_copy

CASES = Cases()
SIZED = ("int8", "int16", "float32", "float64", "complex128")
"""Element types by size; the last one is copied by memcpy."""


def strides_of(view):
    return [step // view.itemsize for step in view.strides]


def offset_of(view, whole):
    return (view.ctypes.data - whole.ctypes.data) // whole.itemsize


@CASES.of(
    "NP_COPY",
    columns=EDGES,
    rows=(*EDGES, 700),
    dtype=SIZED,
    step=(1, 2, -1, -3),
    order=("kept", "transposed", "repeated"),
    wide=(False, True),
)
def copy(kernel, columns, rows, dtype, step, order, wide):
    """From a slice, a transposition or a broadcast, to the whole or a part of the result."""
    if order == "transposed":
        whole = numbers(kernel, dtype, columns * abs(step) + 1, rows + 1)
        view = whole[1::step, 1:].T if step > 0 else whole[-1:0:step, 1:].T
    else:
        whole = numbers(kernel, dtype, 1 if order == "repeated" else rows, columns * abs(step) + 1)
        view = whole[:, 1::step] if step > 0 else whole[:, -1:0:step]
        view = np.broadcast_to(view, (rows, view.shape[1]))
    before = numbers(kernel, dtype, rows + 2 * wide, columns + 3 * wide)
    expected = before.copy()
    part = expected[2:, 1 : 1 + columns] if wide else expected
    part[...] = view
    params = kernels.copy(
        view.shape,
        strides_of(view),
        strides_of(part),
        view.itemsize,
        offset_of(view, whole) if view.size else 0,
        offset_of(part, expected) if view.size else 0,
    )
    kernel.expect(params, [whole], expected, before=before)


@CASES.of(
    "NP_APPEND",
    columns=EDGES[1:],
    new=EDGES,
    past=(0, 1, 16, 33),
    room=(0, 1, 16),
    heads=(1, 2, 3),
    dtype=SIZED[:4],
)
def append(kernel, columns, new, past, room, heads, dtype):
    """Heads lie side by side in the new rows, and one after the other in the cache."""
    given = numbers(kernel, dtype, new, heads, columns)
    before = numbers(kernel, dtype, heads, past + new + room, columns)
    expected = before.copy()
    expected[:, past : past + new] = given.transpose(1, 0, 2)
    rows = kernels.copy(
        (heads, new, columns),
        (columns, heads * columns, 1),
        kernels.dense_strides(before.shape),
        given.itemsize,
    )
    params = kernels.append(rows, new, before.shape[1], columns * given.itemsize)
    lies = before[:0]  # where the output is: nothing is read there
    kernel.expect(params, [lies, given, np.array([past])], expected, before=before)


SHAPES = ((1, 1), (1, 0), (0, 1), (0, 0))
"""Which axes of an operand are as long as the result's: others are broadcast."""


@CASES.of(
    "NP_WHERE",
    columns=EDGES,
    rows=(*EDGES, 700),
    condition=SHAPES,
    first=SHAPES,
    second=SHAPES,
    dtype=SIZED,
)
def where(kernel, columns, rows, condition, first, second, dtype):
    shapes = [
        (rows if down else 1, columns if along else 1) for down, along in (condition, first, second)
    ]
    c = kernel.rng.integers(0, 2, shapes[0]).astype(bool)
    x, y = (numbers(kernel, dtype, *shape) for shape in shapes[1:])
    expected = np.broadcast_to(np.where(c, x, y), (rows, columns))
    strides = [kernels.broadcast_strides(shape, (rows, columns)) for shape in shapes]
    kernel.expect(kernels.where((rows, columns), strides, x.itemsize), [c, x, y], expected)


@CASES.of(
    "NP_NCHW_TO_NHWC",
    pixels=(*EDGES, 4095, 4096, 4097, 20000),
    images=(0, 1, 2, 3),
    channels=(2, 3, 4),
    dtype=("int8", "float32"),
)
def nchw_to_nhwc(kernel, pixels, images, channels, dtype):
    x = numbers(kernel, dtype, images, channels, pixels)
    params = kernels.nchw_to_nhwc(images, channels, pixels, x.itemsize)
    kernel.expect(params, [x], x.transpose(0, 2, 1))


@CASES.of(
    "NP_INDEXED_COPY",
    columns=EDGES[2:],
    rows=(*EDGES[1:], 700),
    before=(0, 1, 5),
    after=(0, 1, 17),
    mode=("reflect", "edge", "wrap"),
    dtype=SIZED[:4],
    step=(1, 2),
)
def pad(kernel, columns, rows, before, after, mode, dtype, step):
    """Oracle: numpy's pad; of every second column, too."""
    whole = numbers(kernel, dtype, rows, columns * step)
    x = whole[:, ::step]
    around = ((min(1, rows - 1), 0), (min(before, columns - 1), min(after, columns - 1)))
    tables = [
        np.pad(np.arange(size, dtype=np.int32), pads, mode)
        for size, pads in zip(x.shape, around, strict=True)
    ]
    expected = np.pad(x, around, mode)
    kernel.expect(indexed_copy(tables, strides_of(x), x.itemsize), [whole], expected)


def indices_of(kernel, count, size, index_size):
    """Return indices, some of which count from the end."""
    found = kernel.rng.integers(-size, size, count)
    return found.astype(np.int32 if index_size == 4 else np.int64)


@CASES.of(
    "NP_GATHER",
    columns=EDGES,
    count=(*EDGES, 700),
    axis=(1, 2, 17),
    outer=(0, 1, 3),
    index_size=(4, 8),
    dtype=SIZED,
)
def gather(kernel, columns, count, axis, outer, index_size, dtype):
    x = numbers(kernel, dtype, outer, axis, columns)
    indices = indices_of(kernel, count, axis, index_size)
    params = kernels.gather(outer, axis, count, columns * x.itemsize, index_size)
    kernel.expect(params, [x, indices], x[:, indices])


@CASES.of(
    "NP_GATHER_S8",
    columns=EDGES[1:],
    count=(*EDGES, 700),
    rows=(1, 2, 17),
    index_size=(4, 8),
    single=(False, True),
)
def gather_s8(kernel, columns, count, rows, index_size, single):
    x, scales = kernel.bytes(rows, columns), kernel.floats(1 if single else rows)
    indices = indices_of(kernel, count, rows, index_size)
    params = kernels.gather_s8(rows, columns, count, index_size, scales=scales.size)
    expected = (x * np.broadcast_to(scales, (rows,))[:, None])[indices]
    kernel.expect(params, [x, indices, scales], expected)


@CASES.of(
    "NP_SCATTER_ROWS",
    columns=EDGES[1:],
    new=EDGES[1:],
    room=(0, 1, 16),
    start=(0, 1, 7),
    batches=(1, 2),
    inner=(1, 3),
    circular=(False, True),
    starts=(False, True),
)
def scatter_rows(kernel, columns, new, room, start, batches, inner, circular, starts):
    rows = new + room
    past, update = (kernel.floats(batches, inner, size, columns) for size in (rows, new))
    starts_at = np.full(batches, start % rows if circular else min(start, room))
    if not starts:
        starts_at[:] = 0
    expected = past.copy()
    for batch, at in enumerate(starts_at):
        expected[batch][:, (at + np.arange(new)) % rows] = update[batch]
    params = kernels.scatter_rows(
        batches, inner, rows, new, 4 * columns, starts=starts, circular=circular
    )
    kernel.expect(params, [past, update, *([starts_at] if starts else [])], expected)
