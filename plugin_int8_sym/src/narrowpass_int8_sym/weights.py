"""Constant weights as int8: quantized lazily, when they are read; and their DequantizeLinear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError
from narrowpass_int8_sym.scales import LARGEST_WEIGHT, of_magnitudes
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import elements
from narrowpass_ir.subgraphs import nested_graphs, reserve_name

Array = np.ndarray[Any, Any]
_PIECE = 1 << 19


def magnitudes(tensor: ir.TensorProtocol, axis: int | None) -> Array:
    """Return the largest magnitude of a float tensor: of all elements, or for each index of `axis`.

    The tensor is read once, in pieces.

    Raises:
        DataError: an element is infinite or NaN.
    """
    dims = tuple(tensor.shape.numpy())
    channels = 1 if axis is None else dims[axis]
    inner = 1 if axis is None else math.prod(dims[axis + 1 :])
    found = np.zeros(channels, np.float32)
    step = max(1, _PIECE // max(1, inner)) * inner if axis is not None else _PIECE
    size = math.prod(dims)
    for start in range(0, size, step):
        piece = np.abs(np.asarray(elements(tensor, start, min(start + step, size)), np.float32))
        if not np.isfinite(piece).all():
            raise DataError(f"weight {tensor.name!r} has an element that is infinite or NaN")
        if axis is None:
            found[0] = max(found[0], piece.max(initial=0))
            continue
        rows = piece.reshape(-1, inner).max(axis=1)
        numbers = (start // inner + np.arange(rows.size)) % channels
        np.maximum.at(found, numbers, rows)
    return found if axis is not None else found.reshape(())


class QuantizedTensor(ir.TensorProtocol):
    """A float tensor quantized to int8: rounded to nearest even, clamped to [-127, 127].

    Quantization is lazy: elements of the source are read and rounded on each read.

    Args:
        source: float32 of any shape, finite.
        scales: float32, [] or [C].
        axis: of the channels; None for one scale.
        name: the tensor's name.
    """

    def __init__(
        self, source: ir.TensorProtocol, scales: Array, axis: int | None, name: str
    ) -> None:
        self.name = name
        self.doc_string = source.doc_string
        self.meta: dict[str, Any] = {}
        self._metadata_props: dict[str, str] = {}
        self._source, self._scales, self._axis = source, scales, axis

    @property
    def raw(self) -> ir.TensorProtocol:
        """The tensor that is quantized."""
        return self._source

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]  # the protocol's is writable
        """Always int8."""
        return ir.DataType.INT8

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]  # as above
        """The shape. Immutable."""
        return ir.Shape(self._source.shape.numpy())

    @property
    def metadata_props(self) -> dict[str, str]:  # type: ignore[override]  # as above
        """What is serialized beside the tensor."""
        return self._metadata_props

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._source.size)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size

    def numpy(self) -> Array:
        """Return the elements, as a fresh array."""
        shape = self._source.shape.numpy()
        return np.frombuffer(self.read(0, self.nbytes), np.int8).reshape(shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def read(self, offset: int, size: int) -> bytes:
        """Read a part of the serialized bytes.

        Raises:
            ModelError: the source cannot be read.
            ValueError: the part is not inside the tensor.
        """
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} are not inside tensor {self.name!r}")
        wide = elements(self._source, offset, offset + size).astype(np.float32)
        # In float32, as QuantizeLinear divides.
        wide /= self._scales if self._axis is None else self._scales_of(offset, size)
        np.rint(wide, out=wide)
        np.clip(wide, -LARGEST_WEIGHT, LARGEST_WEIGHT, out=wide)
        return wide.astype(np.int8).tobytes()

    def _scales_of(self, offset: int, size: int) -> Array:
        """Return the scale of each element of a part, which may wrap along the axis."""
        dims = self._source.shape.numpy()
        axis = 0 if self._axis is None else self._axis
        inner = math.prod(dims[axis + 1 :])
        first, last = offset // inner, -(-(offset + size) // inner)
        found = np.resize(np.roll(self._scales, -(first % dims[axis])), last - first)
        return np.repeat(found, inner)[offset - first * inner :][:size] if inner > 1 else found

    def tobytes(self) -> bytes:
        """Return the bytes as ONNX serializes them."""
        return self.read(0, self.nbytes)

    def tofile(self, file: Any) -> None:
        """Write the serialized bytes in pieces, so that memory stays flat."""
        for start in range(0, self.nbytes, _PIECE):
            file.write(self.read(start, min(_PIECE, self.nbytes - start)))

    def __repr__(self) -> str:
        return f"QuantizedTensor<{self.shape}>(source={self._source!r})"


def quantized(
    tensor: ir.TensorProtocol, axis: int | None, name: str, least: float = 0.0
) -> tuple[QuantizedTensor, Array]:
    """Return a tensor quantized to int8, and its scales: float32 [] or, along `axis`, [C].

    Raises:
        DataError: an element is infinite or NaN.
    """
    scales = of_magnitudes(magnitudes(tensor, axis), least)
    return QuantizedTensor(tensor, scales, axis, name), scales


def taken_names(model: ir.Model) -> set[str | None]:
    """Return the names of all nodes and values of a model's graphs."""
    found: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        found |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph:
            found |= {node.name, *(value.name for value in node.outputs)}
    return found


def add_quantized_weight(
    weight: ir.Value,
    axis: int | None,
    scales: Array,
    taken: set[str | None],
    *,
    factor: float = 1.0,
) -> ir.Value:
    """Add the int8 form of a constant weight to its graph.

    Args:
        weight: an initializer, or the output of a Constant node; float32, finite.
        axis: along which scales differ; None for one scale.
        scales: float32 [] or [C], of the integers.
        taken: names in use; new ones are added.
        factor: multiplies the dequantized weight; folded into its scales.

    Returns:
        The dequantized weight, float32, for the nodes that read it.
    """
    tensor, producer = constant_tensor(weight), weight.producer()
    graph = weight.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{weight.name!r} is no constant of a graph")
    name = weight.name or "weight"
    elements = QuantizedTensor(tensor, scales, axis, reserve_name(f"{name}.int8", taken))
    multiplied = scales if factor == 1.0 else (scales * np.float32(factor)).astype(np.float32)
    return add_dequantize_linear(graph, elements, [multiplied], axis, name, taken)


def add_dequantize_linear(
    graph: ir.Graph,
    elements: ir.TensorProtocol,
    parameters: Sequence[Array],
    axis: int | None,
    name: str,
    taken: set[str | None],
) -> ir.Value:
    """Add integers and their DequantizeLinear at the beginning of a graph; return its result.

    Args:
        graph: to add to.
        elements: the integers; their name must be unused.
        parameters: the scales, and the zero point where there is one.
        axis: along which scales differ; None for one scale.
        name: the prefix of the names of new values and nodes.
        taken: names in use; new ones are added.
    """
    kinds = zip(("scale", "zero_point"), parameters, strict=False)
    tensors = [
        ir.Tensor(array, name=reserve_name(f"{name}.{kind}", taken)) for kind, array in kinds
    ]
    inputs = [add_initializer(graph, each) for each in (elements, *tensors)]
    result = ir.Value(
        name=reserve_name(f"{name}.float", taken),
        shape=ir.Shape(tuple(elements.shape.numpy())),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    node = ir.node(
        "DequantizeLinear",
        inputs,
        attributes={} if axis is None else {"axis": axis},
        outputs=[result],
        name=reserve_name(f"{name}/DequantizeLinear", taken),
    )
    graph.insert_before(next(iter(graph)), node)
    return result


def drop_unread(weight: ir.Value) -> None:
    """Remove a constant that has no consumers any more."""
    if weight.uses() or weight.is_graph_output():
        return
    producer = weight.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif weight.graph is not None and weight.name and weight.is_initializer():
        del weight.graph.initializers[weight.name]


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph as an initializer, named as the tensor."""
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tuple(tensor.shape.numpy())),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.initializers[tensor.name or ""] = value
    return value
