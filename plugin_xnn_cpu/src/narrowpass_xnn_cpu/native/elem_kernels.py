"""Parameters of elementwise functions, casts, typed reductions and channel norms, for C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls, kernels

REDUCED_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float32", "float64")
"""Types that reduce/typed_reduction.c has code for."""

_PART = 1 << 14
"""Elements that a task of a reduction reads."""


def typed_binary(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], name: str, dtype: str
) -> Any:
    """Return the parameters of ``NP_TYPED_BINARY``; operands broadcast by strides of 0."""
    sizes, strides = kernels.collapse_axes(sizes, strides)
    if any(steps[-1] not in (0, 1) for steps in strides):
        raise BackendError(f"operands of {name!r} are not dense along their last axis")
    params = calls.parameters("NP_TYPED_BINARY")
    kernels.set_dims(params.sizes, sizes)
    for target, steps in zip(params.strides, strides, strict=True):
        kernels.set_dims(target, steps)
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
    kernels.set_reduction(params, shape, axes)
    read = params.reduced_count * max(1, params.row)
    params.tile = 1 + _PART // read
    params.op, params.type = calls.constant("NP_REDUCTION", name), calls.constant("NP_TYPE", dtype)
    params.target = kernels.code()
    return params


def row_function(count: int, columns: int, name: str) -> Any:
    """Return the parameters of ``NP_ROWS``, for one of ``NP_ROWS_*``; rows are not empty."""
    fields = count, columns, calls.constant("NP_ROWS", name), kernels.code()
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
