"""Columns of rows as feeds of a method: types converted, ragged rows padded and grouped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.verify import ValueSpec
from narrowpass_ray.rows import Array, Column, Columns, as_column, count_rows


@dataclass(frozen=True)
class Padding:
    """How rows of different lengths become one batch.

    Attributes:
        values: what each ragged input is filled up with along its axis 1 (its first one within a
            row); such as ``{"input_ids": 0, "attention_mask": 0}``. Inputs that are not named are
            not padded: their rows are grouped by shape.
        lengths: buckets, ascending: a row is padded to the first that it fits into. Empty for
            powers of two from 16 on.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.lengths) or sorted(set(self.lengths)) != list(
            self.lengths
        ):
            raise UsageError(f"buckets must be lengths in ascending order, not {self.lengths}")

    def bucket(self, length: int) -> int:
        """Return the length that a row is padded to.

        Raises:
            DataError: it is longer than the last bucket.
        """
        if not self.lengths:
            return max(16, 1 << (length - 1).bit_length()) if length else 16
        for bucket in self.lengths:
            if length <= bucket:
                return bucket
        raise DataError(
            f"a row has {length} elements, more than the last bucket, {self.lengths[-1]}: cut it "
            "off in `preprocess`, or add a bucket"
        )


@dataclass(frozen=True)
class Group:
    """Rows that are computed in one run.

    Attributes:
        rows: their numbers in the batch.
        feeds: arrays by input; the first axis is the rows.
        lengths: of each row before it was padded, by the name of the symbolic dimension.
    """

    rows: Sequence[int]
    feeds: Mapping[str, Array]
    lengths: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Feeder:
    """Turns columns into feeds of a method.

    Attributes:
        inputs: of the method.
        columns: the name of the column for an input, where they differ.
        padding: of ragged inputs.
    """

    inputs: tuple[ValueSpec, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        names = {spec.name for spec in self.inputs}
        for name in (*self.columns, *self.padding.values):
            if name not in names:
                raise UsageError(
                    f"the method has no input {name!r}; its inputs: {', '.join(sorted(names))}"
                )

    def column(self, spec: ValueSpec) -> str:
        """Return the name of the column that feeds an input."""
        return self.columns.get(spec.name, spec.name)

    def check(self, names: Sequence[str]) -> None:
        """Check that the columns of these names suffice.

        Raises:
            UsageError: an input without a column.
        """
        for spec in self.inputs:
            if self.column(spec) not in names and not spec.has_default:
                raise UsageError(
                    f"no column {self.column(spec)!r} for input {spec.name!r}; there are "
                    f"{', '.join(map(repr, names)) or 'none'}: name the column "
                    f"({spec.name}=COLUMN), or let `preprocess` return it"
                )

    def groups(self, columns: Columns) -> list[Group]:
        """Return the rows of a batch, in groups that can be run.

        Raises:
            DataError: a value that does not fit its input.
            UsageError: an input without a column.
        """
        self.check(tuple(columns))
        used = {
            spec.name: self._convert(spec, as_column(columns[self.column(spec)]))
            for spec in self.inputs
            if self.column(spec) in columns
        }
        count = count_rows(used, "the batch")
        if all(isinstance(column, np.ndarray) for column in used.values()) and not any(
            name in used for name in self.padding.values
        ):
            whole = {name: np.asarray(column) for name, column in used.items()}
            return [Group(range(count), whole, {})]
        return list(self._ragged(used, count))

    def _convert(self, spec: ValueSpec, column: Column) -> Column:
        """Return a column in the input's element type; one array where the rows fit together."""
        if isinstance(column, np.ndarray):
            return converted(column, spec)
        rows = [converted(np.asarray(value), spec) for value in column]
        if rows and all(row.shape == rows[0].shape for row in rows):
            return np.stack(rows)
        return rows

    def _ragged(self, used: Mapping[str, Column], count: int) -> Iterator[Group]:
        axes = {spec.name: spec.shape for spec in self.inputs}
        found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for row in range(count):
            key = tuple(
                self._padded_shape(name, np.shape(column[row])) for name, column in used.items()
            )
            found.setdefault(key, []).append(row)
        for key, rows in found.items():
            feeds: dict[str, Array] = {}
            lengths: dict[str, Sequence[int]] = {}
            for (name, column), shape in zip(used.items(), key, strict=True):
                parts = [np.asarray(column[row]) for row in rows]
                if name not in self.padding.values:
                    feeds[name] = np.stack(parts)
                    continue
                fill = self.padding.values[name]
                batch = np.full((len(rows), *shape), fill, parts[0].dtype)
                for place, part in zip(batch, parts, strict=True):
                    place[: len(part)] = part
                feeds[name] = batch
                symbol = (axes[name] or (None, None))[1]
                if isinstance(symbol, str):
                    lengths[symbol] = [len(part) for part in parts]
            yield Group(rows, feeds, lengths)

    def _padded_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if name not in self.padding.values:
            return shape
        if not shape:
            raise DataError(f"input {name!r} is padded, but a row is a number and no list")
        return (self.padding.bucket(shape[0]), *shape[1:])


def converted(array: Array, spec: ValueSpec) -> Array:
    """Return an array in the element type of an input, if that holds the same values.

    Floating point numbers of another width are rounded. The array itself is returned where it has
    the type already.

    Raises:
        DataError: values of another kind, or integers that the type does not hold.
    """
    if spec.dtype is None:
        return array
    try:
        wanted = ir.DataType[spec.dtype.upper()].numpy()
    except (KeyError, TypeError) as error:
        raise DataError(
            f"input {spec.name!r} is {spec.dtype}; only tensors are fed row by row"
        ) from error
    if array.dtype == wanted:
        return array
    what = f"input {spec.name!r} takes {spec.dtype}, and the column has {array.dtype}"
    if spec.dtype == "string":
        if array.dtype.kind in "USO":
            return array.astype(wanted)
        raise DataError(f"{what}; convert it in `preprocess`")
    numeric = "iubf" if wanted.kind not in "iub" else "iub"
    kind = "f" if array.dtype.kind == "V" else array.dtype.kind  # types of ml_dtypes
    if kind not in numeric:
        raise DataError(f"{what}; convert it in `preprocess`")
    with np.errstate(over="ignore"):
        result: Array = array.astype(wanted)
    if kind in "iu" and not np.array_equal(result, array):
        raise DataError(f"{what} with values that it does not hold; convert it in `preprocess`")
    return result


def fixed_rows(inputs: Sequence[ValueSpec]) -> int | None:
    """Return the number of rows that each run must have; None where any number may be."""
    sizes = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], int)}
    if len(sizes) > 1:
        raise UsageError(
            f"inputs have first dimensions of {sorted(sizes)}: the rows of a batch must be the "
            "first axis of each"
        )
    return sizes.pop() if sizes else None


def chunked(group: Group, rows: int | None) -> Iterator[Group]:
    """Divide a group into runs of a fixed number of rows; the last row fills up the last one."""
    count = len(group.rows)
    if rows is None or rows == count:
        yield group
        return
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        feeds: dict[str, Any] = {}
        for name, array in group.feeds.items():
            part = array[start:stop]
            missing = rows - len(part)
            feeds[name] = np.concatenate([part, part[-1:].repeat(missing, 0)]) if missing else part
        lengths = {symbol: values[start:stop] for symbol, values in group.lengths.items()}
        yield Group(group.rows[start:stop], feeds, lengths)
