"""Parameters of elementwise operators, casts, reductions and normalizations of any type, for C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension

TYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float32", "float64"),
)
"""Element types, in the order of ``NP_TYPE_*``."""

REDUCED_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float32", "float64")
"""Those that reduce/typed_reduction.c has code for."""

MATH = (
    *("erf", "softplus", "softsign", "selu", "celu", "mish", "thresholded relu", "shrink"),
    *("hard sigmoid", "swish", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh"),
    "atanh",
)
"""Functions of a float, in the order of ``NP_MATH_*``."""

BINARY = (
    *("add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min", "and", "or", "xor"),
    *("shl", "shr", "equal", "less", "less or equal"),
)
"""Operators of two operands, in the order of ``NP_BINARY_*``; the last three give bool."""

CONDITIONS = BINARY[-3:]

UNARY = ("neg", "abs", "sign", "not", "invert", "isnan", "isinf")
"""Operators of one operand, in the order of ``NP_UNARY_*``."""

REDUCTIONS = ("sum", "prod", "max", "min", "l1", "sum squares", "mean")
"""Reductions, in the order of ``NP_REDUCTION_*``."""

ROWS = ("log softmax", "hardmax", "l1 normalization", "l2 normalization")
"""Functions of rows, in the order of ``NP_ROWS_*``."""

_PART = 1 << 14
"""Elements that a part of the reduction of rows should read."""


def math_function(count: int, name: str, alpha: float = 0.0, beta: float = 0.0) -> Any:
    """Give the parameters of ``NP_MATH``, for one of `MATH`."""
    fields = count, MATH.index(name), alpha, beta
    return extension().ffi.new("struct np_math_params *", fields)


def typed_binary(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], name: str, dtype: str
) -> Any:
    """Give the parameters of ``NP_TYPED_BINARY``: of operands broadcast by strides of 0."""
    sizes, strides = kernels.merged(sizes, strides)
    if any(steps[-1] not in (0, 1) for steps in strides):
        raise BackendError(f"operands of {name!r} are not dense along their last axis")
    params = extension().ffi.new("struct np_typed_binary_params *")
    kernels.set_dims(params.sizes, sizes)
    for target, steps in zip(params.strides, strides, strict=True):
        kernels.set_dims(target, steps)
    params.rank, params.op, params.type = len(sizes), BINARY.index(name), TYPES.index(dtype)
    return params


def typed_unary(
    count: int, name: str, dtype: str, *, positive: bool = True, negative: bool = True
) -> Any:
    """Give the parameters of ``NP_TYPED_UNARY``, for one of `UNARY`."""
    fields = count, UNARY.index(name), TYPES.index(dtype), positive, negative
    return extension().ffi.new("struct np_typed_unary_params *", fields)


def cast(count: int, source: str, target: str) -> Any:
    """Give the parameters of ``NP_CAST``, between two of `TYPES`."""
    fields = count, TYPES.index(source), TYPES.index(target)
    return extension().ffi.new("struct np_cast_params *", fields)


def typed_reduction(shape: Sequence[int], axes: Sequence[int], name: str, dtype: str) -> Any:
    """Give the parameters of ``NP_TYPED_REDUCTION``, over axes of an array that is not empty."""
    if dtype not in REDUCED_TYPES:
        raise BackendError(f"there is no reduction of {dtype}")
    params = extension().ffi.new("struct np_typed_reduction_params *")
    kernels.set_reduction(params, shape, axes)
    read = params.reduced_count * max(1, params.row)
    params.tile = 1 + _PART // read
    params.op, params.type = REDUCTIONS.index(name), TYPES.index(dtype)
    return params


def rows(count: int, columns: int, name: str) -> Any:
    """Give the parameters of ``NP_ROWS``, for one of `ROWS`; rows are not empty."""
    fields = count, columns, ROWS.index(name)
    return extension().ffi.new("struct np_rows_params *", fields)


def group_norm(
    shape: Sequence[int], groups: int, epsilon: float, *, channels_last: bool, by_group: bool
) -> Any:
    """Give the parameters of ``NP_GROUP_NORM``.

    Args:
        shape: of the images, [N, C, ...], or [N, ..., C] where `channels_last`.
        groups: how many; they divide the channels.
        epsilon: added to the variance.
        channels_last: where the channels are.
        by_group: whether scale and bias are of groups, and not of channels.
    """
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    if groups < 1 or channels % groups:
        raise BackendError(f"{channels} channels are not {groups} groups of one size")
    fields = images, channels, math.prod(rest), groups, epsilon, channels_last, by_group
    return extension().ffi.new("struct np_group_norm_params *", fields)


def lrn(
    shape: Sequence[int],
    size: int,
    alpha: float,
    beta: float,
    bias: float,
    *,
    channels_last: bool,
) -> Any:
    """Give the parameters of ``NP_LRN``, of images as in `group_norm`."""
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    if size < 1:
        raise BackendError(f"{size} channels cannot be looked at")
    fields = images, channels, math.prod(rest), size, alpha, beta, bias, channels_last
    return extension().ffi.new("struct np_lrn_params *", fields)


def affine(shape: Sequence[int], limits: tuple[float, float], *, channels_last: bool) -> Any:
    """Give the parameters of ``NP_AFFINE``, of images as in `group_norm`."""
    images, *rest = shape
    channels = rest.pop(-1 if channels_last else 0)
    fields = images, channels, math.prod(rest), *limits, channels_last
    return extension().ffi.new("struct np_affine_params *", fields)
