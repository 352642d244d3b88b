"""The weights of a GGUF file, under the names that the builders of decoders ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
from gguf import GGMLQuantizationType as Kind

from narrowpass_decoders import Blocks, Dense, Matrix, OffsetBlocks
from narrowpass_gguf.blocks import LAYOUTS, Layout, integers_of, packed_of, scales_of, zeros_of
from narrowpass_gguf.metadata import Metadata, Stored
from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import ConvertedTensor, MappedTensor

Array = np.ndarray[Any, Any]

_FLOATS = {
    Kind.F32: ir.DataType.FLOAT,
    Kind.F16: ir.DataType.FLOAT16,
    Kind.BF16: ir.DataType.BFLOAT16,
}
_TABLES = ("embedding", "positions")


@dataclass(frozen=True)
class Part:
    """Some rows of a tensor of the file.

    Attributes:
        name: of the tensor.
        first: the first row.
        count: how many rows; None for all that follow.
    """

    name: str
    first: int = 0
    count: int | None = None


class GgufWeights:
    """See `narrowpass_decoders.Weights`. Nothing is read until somebody asks for elements.

    Args:
        metadata: of the file.
        names: the tensor, or its rows, for each name of the builders.
    """

    def __init__(self, metadata: Metadata, names: Mapping[str, Part]) -> None:
        self._metadata = metadata
        self._names = {k: part for k, part in names.items() if part.name in metadata.tensors}
        self._matrices: dict[str, Matrix] = {}
        self._vectors: dict[str, ir.TensorProtocol] = {}
        self._used: set[str] = set()
        self._upcast: Counter[str] = Counter()

    def has(self, name: str) -> bool:
        """Return whether the file has such a weight."""
        return name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight, of all rows of its tensor.

        Raises:
            ModelError: there is none.
        """
        return self._find(name)[0].shape

    def vector(self, name: str) -> ir.TensorProtocol:
        """Return a weight as float32."""
        if name not in self._vectors:
            stored, part = self._find(name)
            self._vectors[name] = self._floats(name, stored, part)
        return self._vectors[name]

    def matrix(self, name: str) -> Matrix:
        """Return a matrix in the form that holds its numbers."""
        if name not in self._matrices:
            stored, part = self._find(name)
            if len(stored.shape) != 2:
                raise ModelError(f"tensor {stored.name!r} has {len(stored.shape)} axes, and not 2")
            self._matrices[name] = self._matrix(name, stored, part)
        return self._matrices[name]

    def notes(self) -> list[str]:
        """Return a sentence for each type that is stored wider than in the file."""
        return [
            f"{count} tensors of {kind} are stored as float32, since no form of ONNX has their "
            "blocks; a pass such as int4 narrows them again"
            for kind, count in sorted(self._upcast.items())
        ]

    def check_used(self) -> None:
        """Refuse a file that has more than the model of its architecture.

        Raises:
            ModelError: a tensor was not asked for.
        """
        rest = sorted(self._metadata.tensors.keys() - self._used - {"rope_freqs.weight"})
        if rest:
            raise ModelError(
                f"has {len(rest)} tensors that a model of architecture "
                f"{self._metadata.architecture!r} does not have here, such as {rest[0]!r}; this "
                "variant is not supported"
            )

    def _find(self, name: str) -> tuple[Stored, Part]:
        if name not in self._names:
            raise ModelError(f"lacks the tensor for {name!r}; convert the model again")
        part = self._names[name]
        self._used.add(part.name)
        return self._metadata.tensors[part.name], part

    def _matrix(self, name: str, stored: Stored, part: Part) -> Matrix:
        layout = LAYOUTS.get(stored.kind)
        if layout is None or (layout.offset and name in _TABLES):
            return Dense(self._floats(name, stored, part))
        rows, inputs = self._rows(stored, part), stored.shape[1]
        if inputs % layout.elements:
            raise ModelError(f"tensor {stored.name!r} has rows of {inputs}, no multiple of a block")
        blocks = inputs // layout.block
        raw = self._raw(stored, part, layout)

        def lazy(
            kind: str, dtype: ir.DataType, read: Callable[[Array, Layout], Array], *dims: int
        ) -> ir.TensorProtocol:
            label = f"{name}.{kind}"
            return _lazy(label, dtype, dims, lambda: read(raw.numpy(), layout))

        scale = ir.DataType.from_numpy(np.dtype(layout.scale))
        scales = lazy("scales", scale, scales_of, rows, blocks)
        if not layout.offset:
            kind = ir.DataType.INT4 if layout.bits == 4 else ir.DataType.INT8
            whole = lazy("integers", kind, integers_of, rows, inputs)
            return Blocks(whole, scales, layout.block)
        size = layout.block * layout.bits // 8
        packed = lazy("integers", ir.DataType.UINT8, packed_of, rows, blocks, size)
        zeros = lazy("zeros", ir.DataType.FLOAT, zeros_of, rows, blocks)
        return OffsetBlocks(packed, scales, zeros, layout.bits, layout.block, inputs)

    def _rows(self, stored: Stored, part: Part) -> int:
        """Return how many rows a part has.

        Raises:
            ModelError: the tensor has not so many.
        """
        rows = stored.shape[0] - part.first if part.count is None else part.count
        if rows < 1 or part.first + rows > stored.shape[0]:
            raise ModelError(
                f"tensor {stored.name!r} has {stored.shape[0]} rows, which are too few"
            )
        return rows

    def _raw(self, stored: Stored, part: Part, layout: Layout) -> MappedTensor:
        width = stored.shape[1] // layout.elements * layout.size
        rows, start = self._rows(stored, part), stored.offset + part.first * width
        return MappedTensor(
            self._metadata.file, start, ir.DataType.UINT8, (rows, width), stored.name
        )

    def _floats(self, name: str, stored: Stored, part: Part) -> ir.TensorProtocol:
        rows = self._rows(stored, part)
        shape = (rows, *stored.shape[1:])
        dtype = _FLOATS.get(stored.kind)
        if dtype is not None:
            row = int(np.prod(stored.shape[1:], dtype=np.int64)) * dtype.bitwidth // 8
            start = stored.offset + part.first * row
            tensor = MappedTensor(self._metadata.file, start, dtype, shape, name)
            wide = dtype == ir.DataType.FLOAT
            return tensor if wide else ConvertedTensor(tensor, ir.DataType.FLOAT, name)
        elements, size = gguf.GGML_QUANT_SIZES[stored.kind]
        width = stored.shape[-1] // elements * size
        file, offset = self._metadata.file, stored.offset + part.first * width
        raw = MappedTensor(file, offset, ir.DataType.UINT8, (rows, width), name)
        self._upcast[stored.kind.name] += 1

        def read() -> Array:
            try:
                found: Array = gguf.dequantize(raw.numpy(), stored.kind)
            except NotImplementedError as error:
                raise ModelError(
                    f"tensor {stored.name!r} is of type {stored.kind.name}, which cannot be read; "
                    "convert the model to another type"
                ) from error
            return found.astype(np.float32).reshape(shape)

        return _lazy(name, ir.DataType.FLOAT, shape, read)


def _lazy(
    name: str, dtype: ir.DataType, dims: tuple[int, ...], read: Callable[[], Array]
) -> ir.TensorProtocol:
    def tensor() -> ir.TensorProtocol:
        return ir.tensor(read(), dtype=dtype, name=name)

    return ir.LazyTensor(tensor, dtype=dtype, shape=ir.Shape(dims), name=name)
