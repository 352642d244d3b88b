"""What a node is evaluated with: tensors that are read late, and stand-ins for types and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
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
