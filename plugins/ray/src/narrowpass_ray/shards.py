"""Shards: the parts of the input that become one file of the output each.

Which rows a shard has depends on the input and the options alone, and so do its number and the name
of its file: a job that is started again finds what is done by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_ray.places import Found, Place

Format = Literal["parquet", "jsonl", "images", "npz"]

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".npz": "npz",
    ".jpg": "images",
    ".jpeg": "images",
    ".png": "images",
    ".webp": "images",
    ".bmp": "images",
}

READERS = 32
"""Footers that are read at once."""

WHOLE = 1 << 62
"""The end of a range that goes to the end of a file."""


@dataclass(frozen=True)
class Shard:
    """A part of the input.

    Attributes:
        number: from 0.
        format: of its files.
        paths: of its files; one, but for images and npz.
        names: of these files relative to the input.
        start: the first row group of a Parquet file, the first byte of a JSON lines file.
        stop: likewise, exclusive.
    """

    number: int
    format: Format
    paths: tuple[str, ...]
    names: tuple[str, ...]
    start: int = 0
    stop: int = WHOLE

    @property
    def output(self) -> str:
        """The name of the file with its results."""
        return f"part-{self.number:06d}.parquet"

    def to_json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Shard:
        """Read what `to_json` returned."""
        fields = json.loads(text)
        paths, names = tuple(fields.pop("paths")), tuple(fields.pop("names"))
        return cls(paths=paths, names=names, **fields)


@dataclass(frozen=True)
class Sizes:
    """How large shards are.

    Attributes:
        rows: of a Parquet file, at least, but for the last shard: whole row groups.
        bytes: of a JSON lines file.
        files: images or npz files.
    """

    rows: int = 65_536
    bytes: int = 64 << 20
    files: int = 256

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UsageError(f"a shard needs at least 1 of {name}, not {value}")


def format_of(files: Sequence[Found], given: str | None, source: str) -> Format:
    """Return the format of the files.

    Args:
        files: of the input.
        given: what the user says; None for what their names say.
        source: the input, for messages.

    Raises:
        UsageError: an unknown format, or files of several.
    """
    if given is not None:
        if given in get_args(Format):
            return cast(Format, given)
        raise UsageError(f"no format {given!r}; there are {', '.join(get_args(Format))}")
    found = {file.name: _ending(file.name) for file in files}
    kinds = {kind for kind in found.values() if kind is not None}
    unknown = [name for name, kind in found.items() if kind is None]
    if unknown or len(kinds) != 1:
        which = f"{unknown[0]} is none of them" if unknown else f"there are {sorted(kinds)}"
        raise UsageError(
            f"{source}: files must all be Parquet, JSON lines, images or npz, and {which}; move "
            "the others away, or name the format of all of them"
        )
    return kinds.pop()


def _ending(name: str) -> Format | None:
    lower = name.lower()
    return next((kind for end, kind in _SUFFIXES.items() if lower.endswith(end)), None)


def fingerprint(files: Sequence[Found]) -> str:
    """Return a hash of the names, sizes and times of files, as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for file in files:
        sha.update(f"{len(file.name)} {file.name} {file.size} {file.changed}\n".encode())
    return sha.hexdigest()


def plan(place: Place, files: Sequence[Found], kind: Format, sizes: Sizes) -> list[Shard]:
    """Divide the input into shards.

    Of a Parquet file the footer is read. One that cannot be read is a shard, which reports it.

    Raises:
        DataError: there are no files.
    """
    if not files:
        raise DataError(f"{place.path} has no files to read")
    shards: list[Shard] = []
    if kind in ("images", "npz"):
        for start in range(0, len(files), sizes.files):
            part = files[start : start + sizes.files]
            paths, names = tuple(f.path for f in part), tuple(f.name for f in part)
            shards.append(Shard(len(shards), kind, paths, names))
        return shards
    # Footers are small, and an object store takes longer to answer than to send them.
    with ThreadPool(READERS) as pool:
        ranges = pool.map(lambda file: list(_ranges(place, file, kind, sizes)), files)
        for file, found in zip(files, ranges, strict=True):
            for start, stop in found:
                shards.append(Shard(len(shards), kind, (file.path,), (file.name,), start, stop))
    return shards


def _ranges(place: Place, file: Found, kind: Format, sizes: Sizes) -> Iterator[tuple[int, int]]:
    if kind == "jsonl":
        if file.name.endswith(".gz") or file.size <= sizes.bytes:
            yield 0, WHOLE
            return
        for start in range(0, file.size, sizes.bytes):
            stop = start + sizes.bytes
            yield start, stop if stop < file.size else WHOLE
        return
    try:
        with place.files.open_input_file(file.path) as source:
            meta = pq.read_metadata(source)
        rows = [meta.row_group(index).num_rows for index in range(meta.num_row_groups)]
    except (OSError, pa.ArrowException):
        yield 0, WHOLE
        return
    start = held = 0
    for index, count in enumerate(rows):
        held += count
        if held >= sizes.rows or index == len(rows) - 1:
            yield start, index + 1
            start, held = index + 1, 0
