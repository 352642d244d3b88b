"""Random inputs for a model, of the dtypes and shapes that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass.runtime.backend import Outputs

_INT_LIMIT = 8
"""Integers stay small, so that accumulators are exact and few of them miss as indices."""

_LARGEST_DIM = 4


def random_feeds(
    model: ir.Model,
    seed: int = 0,
    *,
    sizes: Mapping[str, int] | None = None,
    special: bool = False,
    defaults: bool = False,
) -> Outputs:
    """Create an array for each input of a model.

    Args:
        model: its inputs are tensors or sequences of tensors.
        seed: equal seeds produce equal arrays.
        sizes: sizes of symbolic dimensions, by name. The rest are drawn from 1 to 4; a name has
            one size throughout.
        special: whether NaN, infinities, -0.0, the smallest and the largest value take the place
            of some elements of floating-point inputs.
        defaults: whether inputs that have an initializer get an array too, and do not keep
            their default.

    Returns:
        Arrays by input name: floats from a normal distribution, integers from -8 to 8 (from 0
        where unsigned), booleans, strings. A sequence is a list of two arrays.

    Raises:
        ValueError: an input without a type, or of a type that is neither.
    """
    rng = np.random.default_rng(seed)
    chosen = dict(sizes or {})
    feeds: dict[str, Any] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if name in model.graph.initializers and not defaults:
            continue
        shape = _shape(value, chosen, rng)
        if isinstance(value.type, ir.TensorType):
            feeds[name] = _array(value.type.dtype, shape, rng, special=special)
        elif isinstance(value.type, ir.SequenceType) and isinstance(
            value.type.elem_type, ir.TensorType
        ):
            dtype = value.type.elem_type.dtype
            feeds[name] = [_array(dtype, shape, rng, special=special) for _ in range(2)]
        else:
            raise ValueError(f"input {name!r} has type {value.type}: pass feeds of your own")
    return feeds


def _shape(value: ir.Value, chosen: dict[str, int], rng: np.random.Generator) -> tuple[int, ...]:
    """Return the sizes of an input's dimensions, and remember those of symbolic ones."""
    if value.shape is None:
        raise ValueError(f"input {value.name!r} has no shape: pass feeds of your own")
    shape = []
    for dim in value.shape:
        if isinstance(dim, int):
            shape.append(dim)
            continue
        size = int(rng.integers(1, _LARGEST_DIM + 1))
        if dim.value is not None:
            size = chosen.setdefault(dim.value, size)
        shape.append(size)
    return tuple(shape)


def _array(
    dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator, *, special: bool
) -> np.ndarray[Any, Any]:
    """Return random values of one dtype."""
    if dtype == ir.DataType.STRING:
        words = np.array(["", "a", "narrow", "Straße"], dtype=object)
        return np.asarray(words[rng.integers(0, len(words), shape)], dtype=object)
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    target = dtype.numpy()
    if dtype.is_integer():
        limits = ml_dtypes.iinfo(target)  # type: ignore[no-untyped-call]
        low, high = max(-_INT_LIMIT, int(limits.min)), min(_INT_LIMIT, int(limits.max))
        return np.asarray(rng.integers(low, high, shape, endpoint=True)).astype(target)
    values = np.asarray(rng.normal(size=shape))
    if np.issubdtype(target, np.complexfloating):
        values = values + 1j * rng.normal(size=shape)
    elif _smallest(target) > 0:  # a type of scales, without sign and zero
        values = np.abs(values)
    array = np.asarray(values).astype(target)
    return _with_special(array, rng) if special else array


def _smallest(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]


def _with_special(array: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Replace about a third of the elements with values that arithmetic trips over."""
    limits = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    edges = [limits.min, limits.max, limits.smallest_subnormal]
    words = [float("nan"), float("inf"), -float("inf"), -0.0]
    with np.errstate(all="ignore"):  # a type without infinity takes what is nearest to it
        choices = np.array([*words, *map(float, edges)]).astype(array.dtype)
    drawn = choices[rng.integers(0, len(choices), array.shape)]
    return np.asarray(np.where(rng.random(array.shape) < 1 / 3, drawn, array), array.dtype)
