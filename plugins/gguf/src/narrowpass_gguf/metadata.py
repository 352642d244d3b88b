"""What a GGUF file says before its tensors: fields by key, and where each tensor lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gguf

from narrowpass_gguf.container import check_header
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
