"""Values between two segments of a model, of all samples: in memory, and beyond a limit on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from narrowpass.errors import PassError

Array = np.ndarray[Any, Any]

MOST = 2 << 30
"""Bytes of values between layers that are in memory at most."""

SHARE = 4
"""They are at most one part in so many of the machine's memory, too."""


def memory_limit() -> int:
    """Return how many bytes of values stay in memory: 2 GiB, or a quarter of the machine's."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # it exists on Unix only
        return MOST
    return min(MOST, physical // SHARE)


@dataclass(frozen=True)
class _File:
    """Arrays of one sample in a file, one after the other.

    Attributes:
        path: of the file.
        arrays: dtype and shape of each, in the order of the file, by name.
    """

    path: Path
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


class States:
    """The values of each sample, in the order in which samples were appended.

    Args:
        limit: bytes that stay in memory; the values of further samples are written to files in
            ``TMPDIR``, unless there is text among them.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._written = limit, 0, 0
        self._all: list[dict[str, Array] | _File] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._all)

    def close(self) -> None:
        """Delete all values, and the files that have some."""
        self._all.clear()
        self._bytes = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def append(self, values: Mapping[str, Any]) -> None:
        """Add the values of a sample, whose arrays must not change any more.

        Raises:
            PassError: a value is no array, or cannot be written.
        """
        for name, array in values.items():
            if not isinstance(array, np.ndarray):
                raise PassError(f"value {name!r} is no tensor: the model cannot be run in segments")
        size = sum(array.nbytes for array in values.values())
        texts = any(array.dtype.hasobject for array in values.values())
        if self._bytes + size <= self._limit or texts:
            self._all.append(dict(values))
            self._bytes += size
        else:
            self._all.append(self._write(values, size))

    def drain(self) -> Iterator[dict[str, Array]]:
        """Yield the values of each sample, and forget those that were passed."""
        waiting, self._all = self._all, []
        waiting.reverse()
        while waiting:
            state = waiting.pop()
            if isinstance(state, _File):
                found = _read(state)
                state.path.unlink()
            else:
                found = state
                self._bytes -= sum(array.nbytes for array in state.values())
            yield found

    def first(self) -> dict[str, Array]:
        """Return the values of the first sample; empty where there is none."""
        if not self._all:
            return {}
        state = self._all[0]
        return _read(state) if isinstance(state, _File) else state

    def each(self, name: str) -> Iterator[Array]:
        """Yield one value of each sample in turn."""
        for state in self._all:
            yield _read(state, name)[name] if isinstance(state, _File) else state[name]

    def _write(self, values: Mapping[str, Array], size: int) -> _File:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="narrowpass-int4-")
        path = Path(self._folder.name) / f"{self._written}.bin"
        self._written += 1
        try:
            with path.open("wb") as file:
                for array in values.values():
                    file.write(_bytes(np.ascontiguousarray(array)))
        except OSError as error:
            raise PassError(
                f"{size} bytes of values between layers cannot be written to "
                f"{tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a folder with more space"
            ) from error
        return _File(path, {name: (a.dtype, a.shape) for name, a in values.items()})


def _read(file: _File, only: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file, or one of them."""
    found: dict[str, Array] = {}
    with file.path.open("rb") as opened:
        for name, (dtype, shape) in file.arrays.items():
            count = int(np.prod(shape, dtype=np.int64))
            if only is not None and name != only:
                opened.seek(count * dtype.itemsize, os.SEEK_CUR)
                continue
            found[name] = np.empty(shape, dtype)
            opened.readinto(_bytes(found[name]))
    return found


def _bytes(array: Array) -> memoryview:
    """Return the bytes of a contiguous array; types that numpy has not have no buffer."""
    return array.reshape(-1).view(np.uint8).data
