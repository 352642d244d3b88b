"""One evaluation of a node, as onnx's shape inference and reference evaluator take it.

Operands are tensors that are read late, or stand-ins where only type and shape matter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of

Array = np.ndarray[Any, Any]

_COPIED_BYTES = 1 << 16
"""Up to this size an operand is copied, since some reference operators write into theirs."""

_USES_TYPE = {"CastLike": 1, "EyeLike": 0}
_USES_SHAPE = {"Shape": 0, "Size": 0, "EyeLike": 0}


class Operand(NamedTuple):
    """An input of a node.

    Attributes:
        dtype: its element type.
        dims: its shape.
        tensor: its data; None for a stand-in, of which only type and shape matter.
    """

    dtype: ir.DataType
    dims: tuple[int, ...]
    tensor: ir.TensorProtocol | None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """The bytes that its data takes in a file; data is read only for strings."""
        if self.tensor is not None and self.dtype == ir.DataType.STRING:
            return int(self.tensor.nbytes)
        return -(-self.size * self.dtype.bitwidth // 8)

    def read(self) -> Array:
        """Return the data as an array that may be written into only where it is a copy.

        A stand-in is an array of zeros that takes no memory. Strings are `str` objects.

        Raises:
            UnicodeDecodeError: a string that is no UTF-8.
        """
        if self.tensor is None:
            return np.broadcast_to(np.zeros((), self.dtype.numpy()), self.dims)
        array = self.tensor.numpy()
        if self.dtype == ir.DataType.STRING:
            texts = [bytes(text).decode() for text in array.ravel()]
            return np.array(texts, dtype=object).reshape(self.dims)
        if array.nbytes <= _COPIED_BYTES:
            return array.copy()
        view = array.view()
        view.flags.writeable = False
        return view


def operand_of(
    node: ir.Node,
    index: int,
    value: ir.Value,
    constant: Callable[[ir.Value], Operand | None],
) -> Operand | None:
    """Return what input `index` of `node` is evaluated with; None where that is not constant.

    A stand-in is given wherever the operator looks at no more than type and shape, so that data
    which nothing depends on is never read.
    """
    if node.domain == "" and index in (
        _USES_TYPE.get(node.op_type),
        _USES_SHAPE.get(node.op_type),
    ):
        return _stand_in(node, value)
    return constant(value)


def tensor_operand(value: ir.Value) -> Operand | None:
    """Return the operand of a value that is constant, else None."""
    tensor = constant_of(value)
    if tensor is None:
        return None
    return Operand(tensor.dtype, tuple(tensor.shape.numpy()), tensor)


def _stand_in(node: ir.Node, value: ir.Value) -> Operand | None:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    tensor = constant_of(value)
    dtype = value.dtype if tensor is None else tensor.dtype
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        if node.op_type in _USES_TYPE:
            return None
        dtype = ir.DataType.FLOAT
    if node.op_type not in _USES_SHAPE:
        return Operand(dtype, (), None)
    shape = value.shape if tensor is None else tensor.shape
    if shape is None:
        return None
    dims = tuple(shape)
    first, last = _dims_read(node, len(dims))
    if not all(isinstance(dim, int) for dim in dims[first:last]):
        return None
    # Dimensions outside of the slice are not looked at; 1 stands for those that are not known.
    return Operand(dtype, tuple(dim if isinstance(dim, int) else 1 for dim in dims), None)


def _dims_read(node: ir.Node, rank: int) -> tuple[int, int]:
    if node.op_type != "Shape":
        return 0, rank
    first = node.attributes.get("start")
    last = node.attributes.get("end")
    if any(attribute is not None and attribute.is_ref() for attribute in (first, last)):
        return 0, rank
    start, stop, _ = slice(
        None if first is None else first.as_int(), None if last is None else last.as_int()
    ).indices(rank)
    return start, stop


@dataclass(frozen=True)
class Call:
    """One evaluation of a node.

    Attributes:
        node: the node; its inputs and outputs are renamed by position, so that equal nodes are
            equal calls. Values that its subgraphs capture keep their names.
        opsets: the operator-set versions that it is read with.
        operands: all that it reads, by name.
        results: names of the outputs; empty where the node leaves one out.
        node_bytes: `node` serialized: equal for equal nodes.
    """

    node: onnx.NodeProto
    opsets: Mapping[str, int]
    operands: Mapping[str, Operand]
    results: tuple[str, ...]
    node_bytes: bytes

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What decides the result's types, where they do not depend on data."""
        types = tuple((item.dtype, item.dims) for item in self.operands.values())
        return self.node_bytes, tuple(self.opsets.items()), types

    def types(self) -> dict[str, onnx.TypeProto]:
        """Return the types of the operands."""
        return {
            name: _tensor_type(int(item.dtype), item.dims) for name, item in self.operands.items()
        }


def create_call(
    node: ir.Node,
    inputs: Sequence[Operand | None],
    captured: Mapping[str, Operand],
    opsets: Mapping[str, int],
) -> Call:
    """Return the call of `node` with these inputs (None for one left out) and captured values."""
    names = tuple("" if operand is None else f"#{i}" for i, operand in enumerate(inputs))
    operands = dict(captured)
    operands.update((name, item) for name, item in zip(names, inputs, strict=True) if item)
    results = tuple(f"#out{i}" if value.name else "" for i, value in enumerate(node.outputs))
    if node.attributes:
        proto, data = _with_attributes(node, names, results)
    else:
        proto, data = _plain(node.domain, node.op_type, names, results)
    return Call(proto, opsets, operands, results, data)


def _with_attributes(
    node: ir.Node, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[onnx.NodeProto, bytes]:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=inputs, output=outputs)
    for attribute in node.attributes.values():
        ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
    return proto, proto.SerializeToString(deterministic=True)


@functools.lru_cache(maxsize=1024)
def _plain(
    domain: str, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[onnx.NodeProto, bytes]:
    """Return the one node of this form, which all calls of it share."""
    proto = onnx.NodeProto(op_type=op_type, domain=domain, input=inputs, output=outputs)
    return proto, proto.SerializeToString(deterministic=True)


@functools.lru_cache(maxsize=1024)
def _tensor_type(dtype: int, dims: tuple[int, ...]) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, dims)
