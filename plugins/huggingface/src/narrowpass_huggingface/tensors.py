"""The safetensors of a folder, and weights as parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_decoders import Dense, Matrix
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import ConvertedTensor, MappedFile, MappedTensor

Array = np.ndarray[Any, Any]

_DTYPES = {
    "F64": ir.DataType.DOUBLE,
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "BOOL": ir.DataType.BOOL,
    "U8": ir.DataType.UINT8,
    "I8": ir.DataType.INT8,
    "I64": ir.DataType.INT64,
}
_FLOATS = {
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_tensors(folder: Path) -> dict[str, MappedTensor]:
    """Return the tensors of a folder by name. Nothing but headers is read.

    Raises:
        ModelError: there are no safetensors, or a file is damaged or missing.
    """
    if (folder / INDEX).is_file():
        index = _json(folder / INDEX)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
            raise ModelError(f"{INDEX} has no weight_map")
        names = sorted(set(shards.values()))
        for name in names:
            if Path(name).name != name:
                raise ModelError(f"{INDEX} names a file outside of the folder: {name!r}")
    elif (folder / SINGLE).is_file():
        names = [SINGLE]
    else:
        raise ModelError(
            f"has no {SINGLE}; save the model with transformers' save_pretrained, which writes it"
        )
    found: dict[str, MappedTensor] = {}
    for name in names:
        found |= _file(folder / name)
    return found


def _json(file: Path) -> Any:
    try:
        return parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name} cannot be read: {error}") from error


def _file(path: Path) -> dict[str, MappedTensor]:
    """Return the tensors of one file of safetensors, whose entries may be in any order."""
    file = MappedFile(path)
    try:
        length = int.from_bytes(file.read(0, 8), "little")
        described = parse_json(file.read(8, length))
        found = {}
        for name, entry in described.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            dtype = _DTYPES.get(entry["dtype"])
            if dtype is None:
                raise ModelError(
                    f"{path.name}: tensor {name!r} is of type {entry['dtype']!r:.20}, which is not "
                    "supported; save the model in float32, float16 or bfloat16"
                )
            shape = tuple(int(size) for size in entry["shape"])
            tensor = MappedTensor(file, 8 + length + int(first), dtype, shape, name)
            if tensor.nbytes != int(last) - int(first):
                raise ValueError(f"tensor {name!r} has another length than its shape")
            found[name] = tensor
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelError(f"{path.name} is damaged or cut short: {error}") from error
    return found


@dataclass(frozen=True)
class Part:
    """What a weight is of a tensor.

    Attributes:
        name: of the tensor.
        first: the first of its outputs.
        count: how many outputs; None for all that follow.
        columns: whether the tensor is [K, N], so that outputs are columns.
        third: which of the three of q, k and v it is, where outputs are [heads, 3, head]; None for
            others.
        heads: their number, then.
    """

    name: str
    first: int = 0
    count: int | None = None
    columns: bool = False
    third: int | None = None
    heads: int = 1


class FolderWeights:
    """See `narrowpass_decoders.Weights`.

    Args:
        tensors: of the folder.
        names: a part for each name of the builders.
    """

    def __init__(self, tensors: Mapping[str, MappedTensor], names: Mapping[str, Part]) -> None:
        self._tensors = tensors
        self._names = {name: part for name, part in names.items() if part.name in tensors}
        self._wanted = dict(names)
        self._found: dict[str, ir.TensorProtocol] = {}
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether there is such a weight."""
        return name in self._names

    def matrix(self, name: str) -> Matrix:
        """Return a matrix of float32."""
        tensor, part = self._tensor(name), self._names[name]
        if len(tensor.shape) != 2:
            raise ModelError(f"tensor {part.name!r} has {len(tensor.shape)} axes, and not 2")
        return Dense(tensor, columns=part.columns)

    def vector(self, name: str) -> ir.TensorProtocol:
        """Return a tensor of float32."""
        return self._tensor(name)

    def _tensor(self, name: str) -> ir.TensorProtocol:
        part = self._names.get(name)
        if part is None:
            wanted = self._wanted[name].name if name in self._wanted else name
            raise ModelError(f"lacks the tensor {wanted!r}; save the model again")
        self._used.add(part.name)
        if name not in self._found:
            self._found[name] = _part(self._tensors[part.name], part, name)
        return self._found[name]

    def unused(self) -> list[str]:
        """Return the names of tensors that were not asked for, sorted; not those of buffers."""
        rest = self._tensors.keys() - self._used
        return sorted(name for name in rest if not name.endswith(_BUFFERS))

    def check_used(self) -> None:
        """Refuse a folder that has more than the model of its architecture.

        Raises:
            ModelError: a tensor was not asked for.
        """
        rest = [name for name in self.unused() if name != "lm_head.weight"]
        if rest:
            raise ModelError(
                f"has {len(rest)} tensors that a model of its architecture does not have here, "
                f"such as {rest[0]!r}; this variant is not supported"
            )

    def left_out(self) -> list[str]:
        """Return a sentence for the tensors that were not asked for, where there are any."""
        rest = self.unused()
        if not rest:
            return []
        text = f"{len(rest)} tensors behind the encoder, such as {rest[0]!r}, are left out"
        return [f"{text}: the method returns last_hidden_state"]


_BUFFERS = (
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "embeddings.position_ids",
)
"""Ends of names of tensors that follow from the configuration."""


def _part(tensor: MappedTensor, part: Part, name: str) -> ir.TensorProtocol:
    """Return a part of a tensor as float32: a view of the file where its bytes lie together."""
    if tensor.dtype not in _FLOATS:
        raise ModelError(f"tensor {part.name!r} is {tensor.dtype.name.lower()}, and no float")
    dims = tuple(int(size) for size in tensor.shape.numpy())
    if part.third is not None:
        return _third(tensor, part, dims, name)
    axis = len(dims) - 1 if part.columns else 0
    count = dims[axis] - part.first if part.count is None else part.count
    if count < 1 or part.first + count > dims[axis]:
        raise ModelError(f"tensor {part.name!r} has {dims[axis]} outputs, which are too few")
    shape = (*dims[:axis], count, *dims[axis + 1 :])
    if axis and count < dims[axis]:
        last = part.first + count
        return _lazy(name, shape, lambda: tensor.numpy()[..., part.first : last])
    row = math.prod(dims[1:]) if not axis else 1
    start = tensor.offset + part.first * row * tensor.dtype.bitwidth // 8
    view = MappedTensor(tensor.file, start, tensor.dtype, shape, name)
    wide = tensor.dtype == ir.DataType.FLOAT
    return view if wide else ConvertedTensor(view, ir.DataType.FLOAT, name)


def _third(tensor: MappedTensor, part: Part, dims: tuple[int, ...], name: str) -> ir.TensorProtocol:
    """Return q, k or v of outputs [heads, 3, head]."""
    head, rest = divmod(dims[0], 3 * part.heads)
    if rest or not head:
        raise ModelError(f"tensor {part.name!r} has {dims[0]} outputs for {part.heads} heads")
    shape = (part.heads * head, *dims[1:])

    def read() -> Array:
        wide = tensor.numpy().reshape(part.heads, 3, head, *dims[1:])
        return wide[:, part.third].reshape(shape)

    return _lazy(name, shape, read)


def _lazy(name: str, dims: tuple[int, ...], read: Callable[[], Array]) -> ir.TensorProtocol:
    def tensor() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(read().astype(np.float32)), name=name)

    return ir.LazyTensor(tensor, dtype=ir.DataType.FLOAT, shape=ir.Shape(dims), name=name)
