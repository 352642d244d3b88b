"""Element types of ONNX as numpy's, and arrays drawn of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

F32 = np.dtype(np.float32)
TYPES: dict[str, np.dtype[Any]] = {
    "float": F32,
    "float16": np.dtype(np.float16),
    "double": np.dtype(np.float64),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
"""Types that are drawn, by their names in schemas: those whose arrays all oracles take."""

WEIGHTS = {"float": 12, "float16": 2, "double": 2, "int64": 3, "int32": 2, "bool": 2}
"""How often a type is drawn where a schema allows it; 1 for the others."""

SIZES = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 7, 8, 8, 9, 13, 16, 17, 32, 33, 64)
LARGEST = 4000
"""Elements of an array that is drawn, in most models: they are many rather than large."""


def allowed(types: Sequence[str]) -> list[str]:
    """Return the names of the drawn types among those of a schema, such as ``tensor(float)``."""
    return sorted({t[7:-1] for t in types if t.startswith("tensor(")} & TYPES.keys())


def is_float(dtype: np.dtype[Any]) -> bool:
    """Report whether a type has fractions; bfloat16 is numpy's kind V."""
    return dtype.kind == "f" or dtype == TYPES["bfloat16"]


def draw_shape(
    choice: random.Random, least: int, most: int, zeros: bool, largest: int = LARGEST
) -> tuple[int, ...]:
    """Draw a shape of a rank within bounds; it has sizes of 0 only with `zeros`."""
    rank = choice.choice([r for r in (0, 1, 2, 2, 3, 3, 4, 4, 5) if least <= r <= most] or [least])
    while True:
        shape = tuple(choice.choice(SIZES) for _ in range(rank))
        if math.prod(shape) <= largest and (zeros or 0 not in shape):
            return shape


def draw_array(
    choice: random.Random, numbers: np.random.Generator, dtype: Any, shape: Sequence[int]
) -> Array:
    """Draw elements: small whole numbers, or normally distributed ones."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return numbers.random(tuple(shape)) < 0.5
    if not is_float(dtype):
        low = 0 if dtype.kind == "u" else -9
        return numbers.integers(low, 10, tuple(shape)).astype(dtype)
    if choice.random() < 0.25:
        return np.asarray(numbers.integers(-6, 7, tuple(shape))).astype(dtype)
    return np.asarray(numbers.standard_normal(tuple(shape))).astype(dtype)
