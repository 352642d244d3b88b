"""Rows of caches in narrow types: float16, bfloat16, and int8 with a scale for each row.

A row is the last axis of a cache: one head's keys or values of one token. Kernels narrow the rows
that they append; what is written here, from a session's `restore`, has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from narrowpass_planning.plan.step import Array

FLOAT32 = "float32"
CACHE_DTYPES = (FLOAT32, "float16", "bfloat16", "int8")
"""Element types that caches can be stored in."""

_LARGEST = np.float32(127)
_BITS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class NarrowRows:
    """Elements of rows, and their scales.

    Attributes:
        elements: [.., rows, depth]: the bits of floats as uint16, or int8.
        scales: [.., rows], float32, for int8: an element times the scale of its row is what it
            stands for; None for floats.
    """

    elements: Array
    scales: Array | None = None


def element_dtype(stored: str) -> np.dtype[np.generic]:
    """Return the dtype of `NarrowRows.elements`; bfloat16 has none that other libraries know."""
    return np.dtype(np.int8 if stored == "int8" else np.uint16)


def narrow(values: Array, stored: str) -> NarrowRows:
    """Return float32 rows in a narrow type, rounded to nearest even.

    int8 is symmetric: the largest magnitude of a row becomes 127. A row that is not finite has the
    scale NaN; of one whose magnitudes are below 127 / float32's largest, all becomes 0.

    Args:
        values: [.., rows, depth], float32.
        stored: ``float16``, ``bfloat16`` or ``int8``.
    """
    with np.errstate(all="ignore"):
        if stored != "int8":
            return NarrowRows(values.astype(_BITS[stored]).view(np.uint16))
        largest = np.abs(values).max(-1, keepdims=True, initial=0.0)
        factors = _LARGEST / largest
        kept = np.isfinite(largest) & np.isfinite(factors)
        integers = np.rint(np.where(kept, values * factors, np.float32(0))).astype(np.int8)
        scales = np.where(kept, largest / _LARGEST, np.float32(0))
        scales = np.where(np.isfinite(largest), scales, np.float32(np.nan))
    return NarrowRows(integers, scales[..., 0].astype(np.float32))


def upcast(rows: NarrowRows, stored: str) -> Array:
    """Return narrow rows as float32, [.., rows, depth]."""
    if rows.scales is None:
        found: Array = rows.elements.view(_BITS[stored]).astype(np.float32)
    else:
        found = rows.elements.astype(np.float32) * rows.scales[..., None]
    return found
