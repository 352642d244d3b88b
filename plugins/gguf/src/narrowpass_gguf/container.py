"""The walk over a header before it is read: every length and count must lie inside the file.

`gguf.GGUFReader` takes them as they are.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from narrowpass_ir.errors import ModelError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of scalars, by the number of their type (the specification of GGUF, version 3)."""
_STRING, _ARRAY = 8, 9

_LEAST_FIELD, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8
"""Bytes that a field has at least, and the description of a tensor."""

_DEEPEST = 4
"""How deep arrays may be nested; writers nest none."""

_MOST_DIMENSIONS = 8
_VERSIONS = (2, 3)
"""The first has lengths of 32 bits, which the reader does not read."""


def check_header(path: str) -> None:
    """Check that all that a header announces is in the file.

    Args:
        path: of the file.

    Raises:
        ModelError: it is cut short or damaged.
    """
    with Path(path).open("rb") as file:
        if len(file.read(24)) < 24:
            raise ModelError("is too short for a GGUF file; download it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data).check()


class _Header:
    """A header, and the place up to which it has been checked."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4
        # As the reader does: a version whose lower half is 0 is one of the other byte order.
        self._order = "<" if data[4:6] != b"\0\0" else ">"

    def check(self) -> None:
        """Check all fields and tensors."""
        if self._number("I") not in _VERSIONS:
            return  # the reader says which ones it reads
        tensors, fields = self._number("Q"), self._number("Q")
        self._need(fields, _LEAST_FIELD, "fields")
        for _ in range(fields):
            self._string()
            self._value(self._number("I"), 0)
        self._need(tensors, _LEAST_TENSOR, "tensors")
        for _ in range(tensors):
            self._string()
            dimensions = self._number("I")
            if dimensions > _MOST_DIMENSIONS:
                raise ModelError(f"a tensor has {dimensions} dimensions; download the file again")
            self._skip(8 * dimensions + 4 + 8)

    def _need(self, count: int, least: int, what: str) -> None:
        if count * least > len(self._data) - self._at:
            raise ModelError(
                f"announces {count} {what}, for which it is too short; download it again"
            )

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ModelError("is cut short, or says a wrong length; download it again")
        self._at += size

    def _number(self, form: str) -> int:
        start = self._at
        self._skip(struct.calcsize(f"<{form}"))
        found: int = struct.unpack_from(self._order + form, self._data, start)[0]
        return found

    def _string(self) -> None:
        self._skip(self._number("Q"))

    def _value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array(depth)
        else:
            self._skip(self._size(kind))

    def _array(self, depth: int) -> None:
        if depth == _DEEPEST:
            raise ModelError("arrays are nested too deep; download the file again")
        kind, count = self._number("I"), self._number("Q")
        if kind in (_STRING, _ARRAY):
            self._need(count, 8, "elements of an array")
            for _ in range(count):
                self._value(kind, depth + 1)
        else:
            self._need(count, self._size(kind), "elements of an array")
            self._skip(count * self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ModelError(f"has a value of the unknown type {kind}; download it again")
        return _SIZES[kind]
