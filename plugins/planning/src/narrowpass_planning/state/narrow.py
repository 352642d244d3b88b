"""Rows of caches in narrow types: float16, bfloat16, and int8 with a scale for each row.

A row is the last axis of a cache: one head's keys or values of one token. Kernels narrow the rows
that they append; what is written here, from a session's `restore`, has the same bits.

A file that a session saves has ``float16.NAME`` or ``bfloat16.NAME``, the bits as uint16, or
``int8.NAME`` and ``scales.NAME``; other states are ``state.NAME``, as in the files of other
sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from narrowpass.errors import DataError
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


_PLAIN, _SCALES = "state", "scales"


def file_arrays(
    caches: Mapping[str, NarrowRows], stored: str, others: Mapping[str, Array]
) -> dict[str, Array]:
    """Return copies of the arrays of a file, by name: of narrow caches, and of other states."""
    found = {f"{_PLAIN}.{name}": value.copy() for name, value in others.items()}
    for name, rows in caches.items():
        found[f"{stored}.{name}"] = rows.elements.copy()
        if rows.scales is not None:
            found[f"{_SCALES}.{name}"] = rows.scales.copy()
    return found


def read_file_arrays(
    arrays: Mapping[str, Array],
) -> tuple[str, dict[str, NarrowRows], dict[str, Array]]:
    """Return the type of the caches in a file, their rows, and the values of all states.

    Raises:
        DataError: arrays that it does not return.
    """
    named = {name: name.partition(".")[::2] for name in arrays}
    types = {kind for kind, _ in named.values()} & {*CACHE_DTYPES} - {FLOAT32}
    if len(types) > 1:
        raise DataError(f"the file has caches of {' and '.join(sorted(types))}: it is damaged")
    stored = types.pop() if types else FLOAT32
    found: dict[str, NarrowRows] = {}
    values: dict[str, Array] = {}
    for name, array in arrays.items():
        kind, state = named[name]
        if kind == stored:
            found[state] = _rows(state, array, arrays.get(f"{_SCALES}.{state}"), stored)
            values[state] = upcast(found[state], stored)
        elif kind != _SCALES or f"{stored}.{state}" not in arrays:
            if kind == _PLAIN and f"{stored}.{state}" in arrays:
                raise DataError(f"the file has state {state!r} twice: it is damaged")
            values[state if kind == _PLAIN else name] = array
    return stored, found, values


def _rows(state: str, elements: Array, scales: Array | None, stored: str) -> NarrowRows:
    """Return rows of a file, checked.

    Raises:
        DataError: arrays of another dtype, or scales that do not fit.
    """
    fits = elements.dtype == element_dtype(stored) and elements.ndim > 0
    if stored == "int8" and fits:
        fits = scales is not None and scales.dtype == np.float32
        fits = fits and scales is not None and scales.shape == elements.shape[:-1]
    if not fits:
        raise DataError(f"the {stored} rows of cache {state!r} are damaged")
    return NarrowRows(elements, scales if stored == "int8" else None)
