"""Rows as columns: arrays where all rows have one shape, lists of arrays where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from narrowpass.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]

Column: TypeAlias = "Array | list[Any]"
"""A value for each row: an array whose first axis is the rows, or a list."""

Columns: TypeAlias = Mapping[str, Column]


def as_column(values: Any) -> Column:
    """Return a column of what a reader, Ray or a user's function returned.

    An array of objects, which stands for rows of several shapes, becomes a list.
    """
    if isinstance(values, np.ndarray):
        return list(values) if values.dtype.hasobject else values
    return list(values)


def count_rows(columns: Columns, what: str) -> int:
    """Return the number of rows.

    Raises:
        DataError: there is no column, or two have different numbers of rows.
    """
    counts = {name: len(column) for name, column in columns.items()}
    if not counts:
        raise DataError(f"{what} has no columns")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise DataError(f"{what} has columns of different numbers of rows: {listed}")
    return next(iter(counts.values()))


def select(columns: Columns, start: int, stop: int) -> dict[str, Column]:
    """Return the rows from `start` to `stop`; arrays are views, nothing is copied."""
    return {name: column[start:stop] for name, column in columns.items()}


def gather(pieces: Sequence[tuple[Sequence[int], Column]], count: int) -> Column:
    """Join parts of a column.

    Args:
        pieces: numbers of rows, each once, with the values of these rows.
        count: of all rows.

    Returns:
        An array where the parts fit and no row is missing, without a copy where there is one part;
        else a list, with None for rows that are missing.
    """
    if len(pieces) == 1 and list(pieces[0][0]) == list(range(count)):
        return pieces[0][1]
    arrays = [part for _, part in pieces if isinstance(part, np.ndarray)]
    total = sum(len(rows) for rows, _ in pieces)
    if len(arrays) == len(pieces) > 0 and total == count:
        kinds = {(part.dtype, part.shape[1:]) for part in arrays}
        if len(kinds) == 1:
            dtype, shape = next(iter(kinds))
            joined = np.empty((count, *shape), dtype)
            for rows, part in pieces:
                joined[list(rows)] = part
            return joined
    listed: list[Any] = [None] * count
    for rows, part in pieces:
        for row, value in zip(rows, part, strict=True):
            listed[row] = value
    return listed
