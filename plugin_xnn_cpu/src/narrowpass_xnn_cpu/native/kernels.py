"""Parameters of our kernels for data movement, norms, pooling, conversion and others, for C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array
from narrowpass_xnn_cpu.native import calls, isa
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.weights_cache import pointer

TARGETS = ("best", *isa.LEVELS)
"""Instruction sets that our kernels are compiled for, in the order of ``NP_TARGET_*``."""
TARGET = "best"
"""Highest instruction sets that our kernels use; ``best`` for those of `isa.in_use`. One that the
build lacks stands for the next lower one. ``avx512bf16``
is not checked against the processor, so that tests can run under emulation."""


def code() -> int:
    """Return `TARGET` as ``NP_TARGET_*``."""
    return TARGETS.index(TARGET)


_RANGE_PART = 1 << 14
"""Elements of a task of the minimum and maximum, at least."""


def dynamic_range(count: int, threads: int) -> tuple[Any, int]:
    """Return the parameters of ``NP_DYNAMIC_RANGE`` for `count` elements, and its scratch bytes."""
    part = max(_RANGE_PART, -(-count // (4 * threads)))
    parts = -(-count // part)
    return calls.parameters("NP_DYNAMIC_RANGE", (count, part)), 8 * parts


def copy(
    sizes: Sequence[int],
    in_strides: Sequence[int],
    out_strides: Sequence[int],
    element_size: int,
    in_offset: int = 0,
    out_offset: int = 0,
) -> Any:
    """Return the parameters of ``NP_COPY``; strides and offsets in elements."""
    sizes, (in_strides, out_strides) = collapse_axes(sizes, (in_strides, out_strides))
    params = calls.parameters("NP_COPY")
    set_dims(params.sizes, sizes)
    set_dims(params.in_strides, in_strides)
    set_dims(params.out_strides, out_strides)
    params.rank = len(sizes)
    params.in_offset, params.out_offset = in_offset, out_offset
    params.element_size = element_size
    return params


def append(rows: Any, new_rows: int, capacity: int, row_bytes: int) -> Any:
    """Return the parameters of ``NP_APPEND``.

    Args:
        rows: parameters of ``NP_COPY`` that write the new rows to the first rows.
        new_rows: their number.
        capacity: rows of the buffer.
        row_bytes: stride of its rows.
    """
    return calls.parameters("NP_APPEND", (rows[0], new_rows, capacity, row_bytes))


def where(sizes: Sequence[int], strides: Sequence[Sequence[int]], element_size: int) -> Any:
    """Return the parameters of ``NP_WHERE``: strides of the condition and of both choices."""
    sizes, strides = collapse_axes(sizes, strides)
    params = calls.parameters("NP_WHERE")
    set_dims(params.sizes, sizes)
    for index in range(3):
        set_dims(params.strides[index], strides[index])
    params.rank, params.element_size = len(sizes), element_size
    return params


def gather(outer: int, axis: int, indices: int, row_bytes: int, index_size: int) -> Any:
    """Return the parameters of ``NP_GATHER``."""
    fields = outer, axis, indices, row_bytes, index_size
    return calls.parameters("NP_GATHER", fields)


def scatter_rows(
    batches: int,
    inner: int,
    rows: int,
    new_rows: int,
    row_bytes: int,
    *,
    starts: bool,
    circular: bool,
) -> Any:
    """Return the parameters of ``NP_SCATTER_ROWS``."""
    if new_rows > rows:
        raise BackendError(f"{new_rows} new rows do not fit into a cache of {rows}")
    fields = batches, inner, rows, new_rows, row_bytes, starts, circular
    return calls.parameters("NP_SCATTER_ROWS", fields)


def gather_s8(rows: int, row_size: int, indices: int, index_size: int, *, scales: int) -> Any:
    """Return the parameters of ``NP_GATHER_S8``, with one scale or one for each row."""
    if scales not in (1, rows):
        raise BackendError(f"{scales} scales are not those of {rows} rows")
    fields = rows, row_size, indices, index_size, int(scales != 1)
    return calls.parameters("NP_GATHER_S8", fields)


def layer_norm(
    sizes: Sequence[int],
    columns: int,
    strides: Sequence[Sequence[int]],
    epsilon: float,
    *,
    bias: bool,
    root_mean_square: bool,
    sum_offset: int,
) -> Any:
    """Return the parameters of ``NP_LAYER_NORM``.

    Args:
        sizes: sizes of the axes before rows.
        columns: columns of a row.
        strides: strides of these axes, in rows: of the input, and of a second input that is added
            to it before, if there is one.
        epsilon: added to the variance.
        bias: whether there is a bias.
        root_mean_square: whether it is RMSNorm, which subtracts no mean.
        sum_offset: offset of the sum of both inputs after the result, in elements; 0 where it is
            not stored.
    """
    sizes, strides = collapse_axes(sizes, strides)
    if len(sizes) > 3:
        raise BackendError(
            f"a fused Add before LayerNormalization has 3 axes of rows at most, not {len(sizes)}"
        )
    params = calls.parameters("NP_LAYER_NORM")
    set_dims(params.sizes, [1] * (3 - len(sizes)) + sizes)
    for target, steps in zip((params.x_strides, params.added_strides), strides, strict=False):
        set_dims(target, [0] * (3 - len(sizes)) + [step * columns for step in steps])
    params.columns, params.epsilon, params.sum_offset = columns, epsilon, sum_offset
    params.has_bias, params.has_added = bias, len(strides) > 1
    params.root_mean_square, params.target = root_mean_square, code()
    return params


def add_clamp(count: int, low: float, high: float) -> Any:
    """Return the parameters of ``NP_ADD_CLAMP``."""
    return calls.parameters("NP_ADD_CLAMP", (count, low, high))


_FLOATS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""Element types as ``NP_CONVERT_*`` names them."""


def convert(count: int, source: str, target: str) -> Any:
    """Return the parameters of ``NP_CONVERT``."""
    fields = count, calls.constant("NP_CONVERT", f"{_FLOATS[source]}_to_{_FLOATS[target]}")
    return calls.parameters("NP_CONVERT", fields)


def round_to(count: int, target: str) -> Any:
    """Return the parameters of ``NP_CONVERT`` that round float32 to `target`, stored as float32."""
    conversion = calls.constant("NP_CONVERT_ROUND_TO", _FLOATS[target])
    return calls.parameters("NP_CONVERT", (count, conversion))


def pool(
    shape: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    *,
    maximum: bool,
) -> Any:
    """Return the parameters of ``NP_POOL``.

    Args:
        shape: of the input, [N, H, W, C].
        out: height and width of the output.
        kernel: height and width of the kernel window.
        strides: vertical, horizontal.
        dilations: vertical, horizontal.
        pads: top, left.
        maximum: max pooling, else average pooling without the padding.
    """
    fields = (*shape, *out), kernel, strides, dilations, pads, maximum
    return calls.parameters("NP_POOL", fields)


def set_reduction(params: Any, shape: Sequence[int], axes: Sequence[int]) -> None:
    """Write the axes of a reduction of a dense, non-empty array: see ``reduce/reduce.h``."""
    steps = dense_strides(shape)
    places: list[tuple[int, int, bool]] = []
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        if size == 1:
            continue
        # Neighbours that are both kept or both reduced are one axis.
        joined = places and places[-1][2] == (axis in axes)
        places.append((size * (places.pop()[0] if joined else 1), step, axis in axes))
    kept = [place[:2] for place in places if not place[2]]
    reduced = [place[:2] for place in places if place[2]]
    inner = kept if places and not places[-1][2] else reduced
    size = inner.pop()[0] if inner else 1
    params.columns, params.row = (size, 0) if inner is kept else (0, size)
    for target, found in ((params.kept, kept), (params.reduced, reduced)):
        target.rank = len(found)
        set_dims(target.sizes, [size for size, _ in found])
        set_dims(target.strides, [step for _, step in found])
    params.kept_count = math.prod(size for size, _ in kept)
    params.reduced_count = math.prod(size for size, _ in reduced)


def quantize(count: int, scale: float, zero_point: int, columns: int = 0) -> Any:
    """Return the parameters of ``NP_QUANTIZE``, with the clipping range [-128, 127].

    Args:
        count: number of elements.
        scale: scale of the result.
        zero_point: zero point of the result.
        columns: columns of a row, where a second input has a factor for each; 0 for none.
    """
    limits = -128 - zero_point, 127 - zero_point
    fields = count, columns, scale, *limits, zero_point
    return calls.parameters("NP_QUANTIZE", fields)


def dequantize(count: int, scale: float, zero_point: int) -> Any:
    """Return the parameters of ``NP_DEQUANTIZE``."""
    fields = {"count": count, "scale": scale, "zero_point": zero_point}
    return calls.parameters("NP_DEQUANTIZE", fields)


def lookup_table(count: int, entries: bytes) -> Any:
    """Return the parameters of ``NP_TABLE``, a lookup table: entry i is the result for byte i."""
    if len(entries) != 256:
        raise BackendError(f"a lookup table has 256 entries, not {len(entries)}")
    params = calls.parameters("NP_TABLE")
    params.count = count
    extension().ffi.memmove(params.table, entries, 256)
    return params


def function(count: int, name: str, alpha: float = 0.0, beta: float = 0.0) -> Any:
    """Return the parameters of ``NP_FUNCTION``, for one of ``NP_FUNCTION_*``."""
    fields = count, calls.constant("NP_FUNCTION", name), alpha, beta
    return calls.parameters("NP_FUNCTION", fields)


def gate(
    rows: int,
    columns: int,
    x: tuple[int, int],
    factor: tuple[int, int] | None,
    slope: float,
    cubic: float,
) -> Any:
    """Return the parameters of ``NP_GATE``: x * sigmoid(slope * x + cubic * x³), times a factor.

    It computes SiLU, tanh-GELU and, with a factor, SwiGLU and GeGLU.

    Args:
        rows: number of rows.
        columns: columns of a row.
        x: offset and row stride of x, in elements.
        factor: offset and row stride of the factor; None for none.
        slope: coefficient of x in the argument of the sigmoid.
        cubic: coefficient of x³.
    """
    fields = rows, columns, *x, *(factor or (0, 0)), slope, cubic, factor is not None
    return calls.parameters("NP_GATE", fields)


def softmax_pairs(count: int) -> Any:
    """Return the parameters of ``NP_SOFTMAX_PAIRS``."""
    return calls.parameters("NP_SOFTMAX_PAIRS", (count,))


def nchw_to_nhwc(images: int, channels: int, pixels: int, element_size: int) -> Any:
    """Return the parameters of ``NP_NCHW_TO_NHWC``."""
    if element_size not in (1, 4):
        raise BackendError(f"elements of {element_size} bytes are not interleaved")
    fields = images, channels, pixels, element_size
    return calls.parameters("NP_NCHW_TO_NHWC", fields)


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a dense array, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> list[int]:
    """Return the strides with which a dense array of `shape` is read as one of `target`."""
    padded = [1] * (len(target) - len(shape)) + list(shape)
    strides = dense_strides(padded)
    return [0 if size == 1 else stride for size, stride in zip(padded, strides, strict=True)]


def collapse_axes(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Collapse adjacent axes that are contiguous in all operands, and drop those of size 1."""
    kept: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        here = [stride[axis] for stride in strides]
        if kept and all(rows[-1] == step * size for rows, step in zip(steps, here, strict=True)):
            kept[-1] *= size
            for rows, step in zip(steps, here, strict=True):
                rows[-1] = step
            continue
        kept.append(size)
        for rows, step in zip(steps, here, strict=True):
            rows.append(step)
    if not kept:
        return [1], [[1] for _ in strides]
    return kept, steps


def set_dims(target: Any, values: Sequence[int]) -> None:
    """Write sizes or strides into an array of a struct."""
    most = extension().lib.NP_MAX_DIMS
    if len(values) > most:
        raise BackendError(f"a kernel takes {most} dimensions at most, not {len(values)}")
    for index, value in enumerate(values):
        target[index] = value


REDUCED_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float32", "float64")
"""Types that reduce/typed_reduction.c has code for."""

_PART = 1 << 14
"""Elements that a task of a reduction reads."""


def typed_binary(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], name: str, dtype: str
) -> Any:
    """Return the parameters of ``NP_TYPED_BINARY``; operands broadcast by strides of 0."""
    sizes, strides = collapse_axes(sizes, strides)
    if any(steps[-1] not in (0, 1) for steps in strides):
        raise BackendError(f"operands of {name!r} are not dense along their last axis")
    params = calls.parameters("NP_TYPED_BINARY")
    set_dims(params.sizes, sizes)
    for target, steps in zip(params.strides, strides, strict=True):
        set_dims(target, steps)
    params.rank = len(sizes)
    params.op, params.type = calls.constant("NP_BINARY", name), calls.constant("NP_TYPE", dtype)
    return params


def typed_unary(
    count: int, name: str, dtype: str, *, positive: bool = True, negative: bool = True
) -> Any:
    """Return the parameters of ``NP_TYPED_UNARY``, for one of ``NP_UNARY_*``."""
    op, element = calls.constant("NP_UNARY", name), calls.constant("NP_TYPE", dtype)
    return calls.parameters("NP_TYPED_UNARY", (count, op, element, positive, negative))


def cast(count: int, source: str, target: str) -> Any:
    """Return the parameters of ``NP_CAST``, between two element types."""
    fields = count, calls.constant("NP_TYPE", source), calls.constant("NP_TYPE", target)
    return calls.parameters("NP_CAST", fields)


def typed_reduction(shape: Sequence[int], axes: Sequence[int], name: str, dtype: str) -> Any:
    """Return the parameters of ``NP_TYPED_REDUCTION``, over axes of a dense, non-empty array."""
    if dtype not in REDUCED_TYPES:
        raise BackendError(f"there is no reduction of {dtype}")
    params = calls.parameters("NP_TYPED_REDUCTION")
    set_reduction(params, shape, axes)
    read = params.reduced_count * max(1, params.row)
    params.tile = 1 + _PART // read
    params.op, params.type = calls.constant("NP_REDUCTION", name), calls.constant("NP_TYPE", dtype)
    params.target = code()
    return params


def row_function(count: int, columns: int, name: str) -> Any:
    """Return the parameters of ``NP_ROWS``, for one of ``NP_ROWS_*``; rows are not empty."""
    fields = count, columns, calls.constant("NP_ROWS", name), code()
    return calls.parameters("NP_ROWS", fields)


def group_norm(
    shape: Sequence[int], groups: int, epsilon: float, *, channels_last: bool, by_group: bool
) -> Any:
    """Return the parameters of ``NP_GROUP_NORM``.

    Args:
        shape: of the images, [N, C, ...], or [N, ..., C] where `channels_last`.
        groups: number of groups, which divides the channels.
        epsilon: added to the variance.
        channels_last: whether channels are the last axis.
        by_group: whether there is a scale and a bias for each group, else for each channel.
    """
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    if groups < 1 or channels % groups:
        raise BackendError(f"{channels} channels are not {groups} groups of one size")
    fields = images, channels, math.prod(rest), groups, epsilon, channels_last, by_group
    return calls.parameters("NP_GROUP_NORM", fields)


def lrn(
    shape: Sequence[int],
    size: int,
    alpha: float,
    beta: float,
    bias: float,
    *,
    channels_last: bool,
) -> Any:
    """Return the parameters of ``NP_LRN``, of images as in `group_norm`."""
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    if size < 1:
        raise BackendError(f"LRN over {size} channels")
    fields = images, channels, math.prod(rest), size, alpha, beta, bias, channels_last
    return calls.parameters("NP_LRN", fields)


def affine(shape: Sequence[int], limits: tuple[float, float], *, channels_last: bool) -> Any:
    """Return the parameters of ``NP_AFFINE``, of images as in `group_norm`."""
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    fields = images, channels, math.prod(rest), *limits, channels_last
    return calls.parameters("NP_AFFINE", fields)


def quantize16(count: int, scale: float, zero_point: int, *, is_signed: bool) -> Any:
    """Return the parameters of ``NP_QUANTIZE16``, ``NP_DEQUANTIZE16`` and ``NP_FAKE_QUANTIZE``.

    Args:
        count: number of elements.
        scale: scale of the integers.
        zero_point: zero point of the integers.
        is_signed: whether they are int16, else uint16.
    """
    least = -(1 << 15) if is_signed else 0
    bounds = least - zero_point, least + (1 << 16) - 1 - zero_point
    fields = count, 0, scale, *bounds, zero_point, is_signed
    return calls.parameters("NP_QUANTIZE16", fields)


def fake_quantize_channels(count: int, inner: int, table: Array) -> Any:
    """Return the parameters of ``NP_FAKE_QUANTIZE_CHANNELS``: per-channel quantize and dequantize.

    Args:
        count: number of elements; not 0.
        inner: contiguous elements of a channel.
        table: float32 [3, channels]: scales, and clipping ranges in units of the scales; it must
            outlive the parameters.
    """
    ffi = extension().ffi
    rows, channels = table.shape
    if rows != 3 or table.dtype != np.float32 or count % (inner * channels):
        raise BackendError(f"{channels} channels of {inner} do not fit {count} elements")
    fields = count, channels, inner, *(pointer(ffi, row) for row in table)
    return calls.parameters("NP_FAKE_QUANTIZE_CHANNELS", fields)
