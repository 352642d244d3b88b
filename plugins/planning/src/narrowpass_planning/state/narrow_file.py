"""Narrow rows of caches in the files that sessions save.

A file has ``float16.NAME`` or ``bfloat16.NAME``, the bits as uint16, or ``int8.NAME`` and
``scales.NAME``; other states are ``state.NAME``, as in the files of other sessions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from narrowpass.errors import DataError
from narrowpass_planning.plan.step import Array
from narrowpass_planning.state.narrow import (
    CACHE_DTYPES,
    FLOAT32,
    NarrowRows,
    element_dtype,
    upcast,
)

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
