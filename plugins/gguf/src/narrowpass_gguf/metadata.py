"""What a GGUF file says before its tensors: fields by key, and where each tensor lies.

The header is walked over before it is read: every length and count must lie inside the file.
`gguf.GGUFReader` takes them as they are.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gguf

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import MappedFile

T = TypeVar("T")

_REQUIRED: Any = object()


@dataclass(frozen=True)
class Stored:
    """A tensor of the file.

    Attributes:
        name: its name in the file.
        kind: its type.
        shape: as in ONNX: rows first.
        offset: of its first byte.
        nbytes: its length.
    """

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Metadata:
    """The header of a file.

    Attributes:
        file: the file, mapped where tensors are read.
        tensors: by name.
        architecture: such as ``llama``, the prefix of keys.
    """

    def __init__(
        self, file: MappedFile, fields: dict[str, Any], tensors: dict[str, Stored]
    ) -> None:
        self.file = file
        self.tensors = tensors
        self._fields = fields
        self.architecture = self.get("general.architecture", str)

    @classmethod
    def read(cls, path: str) -> Metadata:
        """Read the header of a file.

        Raises:
            ModelError: it is cut short, or its tensors do not lie inside.
            ValueError: it is no GGUF file, or of a version that is not supported.
        """
        file = MappedFile(path)
        check_header(path)
        reader = gguf.GGUFReader(path)
        tensors = {}
        for tensor in reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            place = int(tensor.data_offset), int(tensor.n_bytes)
            if sum(place) > file.size:
                raise ModelError(
                    f"tensor {tensor.name!r} lies beyond the end of the file, which is cut short; "
                    "download it again"
                )
            tensors[str(tensor.name)] = Stored(
                str(tensor.name), gguf.GGMLQuantizationType(tensor.tensor_type), shape, *place
            )
        fields = {key: field.contents() for key, field in reader.fields.items()}
        return cls(file, fields, tensors)

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """Return a field.

        Args:
            key: its key; ``{}`` stands for the architecture.
            kind: its type; whole numbers are taken as floats.
            default: what is returned where the file lacks it.

        Raises:
            ModelError: the file lacks it and there is no default, or it is of another type.
        """
        key = key.replace("{}", getattr(self, "architecture", ""))
        value = self._fields.get(key, default)
        if value is _REQUIRED:
            raise ModelError(f"lacks the field {key!r}; convert the model again")
        if kind is float and isinstance(value, int):
            value = float(value)
        if value is not default and not isinstance(value, kind):
            raise ModelError(f"field {key!r} is {value!r:.60}, and no {kind.__name__}")
        found: T = value
        return found

    def items(self, key: str, kind: type[T], default: Sequence[T] = _REQUIRED) -> list[T]:
        """Return a field that is a list of one type; see `get`.

        Raises:
            ModelError: the file lacks it and there is no default, or it has others.
        """
        # `get` has one type for the field and its default, which may be any sequence here.
        found: list[Any] = self.get(key, list, default)  # type: ignore[arg-type]
        kinds: Any = (float, int) if kind is float else kind
        if odd := [item for item in found if not isinstance(item, kinds)]:
            raise ModelError(f"field {key!r} has {odd[0]!r:.60}, which is no {kind.__name__}")
        return found


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
