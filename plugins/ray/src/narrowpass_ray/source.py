"""The rows of a shard, in batches; what cannot be read is an error of its row."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from narrowpass.errors import DataError, UsageError
from narrowpass.framework.boundary import sentence
from narrowpass_ir.data.npz import READ_ERRORS
from narrowpass_ray.arrow import column_of
from narrowpass_ray.places import Place
from narrowpass_ray.rows import Column, count_rows
from narrowpass_ray.shards import Shard


@dataclass(frozen=True)
class Batch:
    """Rows of a shard.

    Attributes:
        sources: the file of each row.
        numbers: of each row in its file; of JSON lines the offset of its first byte. None for a
            file that cannot be read.
        columns: of the rows without an error, in their order.
        errors: by place in the batch: why a row could not be read.
    """

    sources: list[str]
    numbers: list[int | None]
    columns: dict[str, Column]
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.sources)

    @property
    def readable(self) -> list[int]:
        """The places of the rows that `columns` has."""
        return [place for place in range(self.count) if place not in self.errors]


def read(
    place: Place, shard: Shard, batch_size: int, wanted: Collection[str] | None
) -> Iterator[Batch]:
    """Yield the rows of a shard.

    Args:
        place: of the input.
        shard: which part of it.
        batch_size: the largest number of rows in a batch.
        wanted: the columns to read; None for all.

    Raises:
        UsageError: a column that is not there; a package that is missing.
    """
    readers = {"parquet": _parquet, "jsonl": _jsonl, "images": _images, "npz": _npz}
    yield from readers[shard.format](place, shard, batch_size, wanted)


def _unreadable(name: str, error: BaseException) -> Batch:
    return Batch([name], [None], {}, {0: f"the file cannot be read: {sentence(error)}"})


def _parquet(
    place: Place, shard: Shard, batch_size: int, wanted: Collection[str] | None
) -> Iterator[Batch]:
    (path,), (name,) = shard.paths, shard.names
    try:
        source = place.files.open_input_file(path)
    except OSError as error:
        yield _unreadable(name, error)
        return
    with source:
        row = 0
        try:
            file = pq.ParquetFile(source)
            groups = range(shard.start, min(shard.stop, file.metadata.num_row_groups))
            row = sum(file.metadata.row_group(group).num_rows for group in range(shard.start))
            chosen = None if wanted is None else _present(wanted, file.schema_arrow.names, name)
            for part in file.iter_batches(batch_size, row_groups=list(groups), columns=chosen):
                yield _from_arrow(part, name, row)
                row += part.num_rows
        except (OSError, pa.ArrowException) as error:
            yield _unreadable(name, error)


def _present(wanted: Collection[str], names: Sequence[str], file: str) -> list[str]:
    if missing := [name for name in wanted if name not in names]:
        raise UsageError(f"{file} has no column {missing[0]!r}; it has {', '.join(names)}")
    return list(wanted)


def _from_arrow(part: pa.RecordBatch, name: str, row: int) -> Batch:
    errors: dict[int, str] = {}
    for column_name, column in zip(part.schema.names, part.columns, strict=True):
        if column.null_count:
            for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
                errors.setdefault(int(place), f"column {column_name!r} is null")
    if errors:
        part = part.take(pa.array([i for i in range(part.num_rows) if i not in errors], pa.int64()))
    columns = {
        column_name: column_of(column)
        for column_name, column in zip(part.schema.names, part.columns, strict=True)
    }
    count = part.num_rows + len(errors)
    return Batch([name] * count, list(range(row, row + count)), columns, errors)


def _jsonl(
    place: Place, shard: Shard, batch_size: int, wanted: Collection[str] | None
) -> Iterator[Batch]:
    (path,), (name,) = shard.paths, shard.names
    rows = _Collector(name, wanted)
    try:
        for offset, line in _lines(place, path, shard):
            if line.strip():
                rows.add_line(offset, line)
                if rows.count == batch_size:
                    yield rows.batch()
    except (OSError, pa.ArrowException) as error:
        if rows.count:
            yield rows.batch()
        yield _unreadable(name, error)
        return
    if rows.count:
        yield rows.batch()


def _lines(place: Place, path: str, shard: Shard) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in the range of a shard, with the offset of each."""
    if path.endswith(".gz"):
        with place.files.open_input_stream(path, compression="gzip") as stream:
            offset = 0
            for line in io.BufferedReader(stream):
                yield offset, line
                offset += len(line)
        return
    with place.files.open_input_file(path) as file:
        offset = max(shard.start - 1, 0)
        file.seek(offset)
        reader = io.BufferedReader(file, 1 << 20)
        if shard.start:
            # The line that the byte before belongs to is the last shard's.
            offset += len(reader.readline())
        for line in reader:
            if offset >= shard.stop:
                return
            yield offset, line
            offset += len(line)


class _Collector:
    """Collects lines of JSON until they are a batch."""

    def __init__(self, name: str, wanted: Collection[str] | None) -> None:
        self._name, self._wanted = name, wanted
        self._clear()

    def _clear(self) -> None:
        self._numbers: list[int | None] = []
        self._rows: list[dict[str, Any]] = []
        self._errors: dict[int, str] = {}

    @property
    def count(self) -> int:
        return len(self._numbers)

    def add_line(self, offset: int, line: bytes) -> None:
        place = self.count
        self._numbers.append(offset)
        try:
            row: object = json.loads(line)
            if not isinstance(row, dict):
                raise DataError(f"the line is {type(row).__name__}, and no object with columns")
            names = row if self._wanted is None else self._wanted
            if missing := [name for name in names if row.get(name) is None]:
                raise DataError(f"column {missing[0]!r} is missing or null")
        except (ValueError, RecursionError, DataError) as error:
            self._errors[place] = sentence(error)
            return
        self._rows.append({name: row[name] for name in names})

    def batch(self) -> Batch:
        names = dict.fromkeys(name for row in self._rows for name in row)
        kept, read = [], iter(self._rows)
        for place in range(self.count):
            if place in self._errors:
                continue
            row = next(read)
            if missing := [name for name in names if name not in row]:
                self._errors[place] = f"column {missing[0]!r} is missing, and other rows have it"
            else:
                kept.append(row)
        columns: dict[str, Column] = {name: [row[name] for row in kept] for name in names}
        found = Batch([self._name] * self.count, self._numbers, columns, self._errors)
        self._clear()
        return found


def _images(
    place: Place, shard: Shard, batch_size: int, wanted: Collection[str] | None
) -> Iterator[Batch]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UsageError(
            "images are read by Pillow, which is missing: pip install 'narrowpass-ray[images]'"
        ) from error
    broken = (*READ_ERRORS, UnidentifiedImageError, Image.DecompressionBombError)
    if wanted is not None:
        _present(wanted, ("image", "path"), "an image")
    for start in range(0, len(shard.paths), batch_size):
        names = list(shard.names[start : start + batch_size])
        images: list[Any] = []
        errors: dict[int, str] = {}
        for index, path in enumerate(shard.paths[start : start + batch_size]):
            try:
                with place.files.open_input_file(path) as file:
                    images.append(np.asarray(Image.open(file).convert("RGB")))
            except broken as error:
                errors[index] = f"the file cannot be read: {sentence(error)}"
        paths = [name for index, name in enumerate(names) if index not in errors]
        numbers = [None if index in errors else 0 for index in range(len(names))]
        yield Batch(names, numbers, {"image": images, "path": paths}, errors)


def _npz(
    place: Place, shard: Shard, batch_size: int, wanted: Collection[str] | None
) -> Iterator[Batch]:
    for path, name in zip(shard.paths, shard.names, strict=True):
        try:
            data = place.inside("").files.open_input_file(path)
            with data, np.load(io.BytesIO(data.read()), allow_pickle=False) as archive:
                columns = {
                    key: archive[key] for key in archive.files if wanted is None or key in wanted
                }
            if any(not array.ndim for array in columns.values()):
                raise DataError("an array without axes has no rows; rows are the first axis")
            count = count_rows(columns, "the file")
        except (*READ_ERRORS, DataError) as error:
            yield _unreadable(name, error)
            continue
        if wanted is not None:
            _present(wanted, tuple(columns), name)
        for start in range(0, count, batch_size):
            stop = min(start + batch_size, count)
            part: dict[str, Column] = {key: array[start:stop] for key, array in columns.items()}
            yield Batch([name] * (stop - start), list(range(start, stop)), part)
