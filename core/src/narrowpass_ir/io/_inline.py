"""Tensors stored in the protobuf itself, taken out of it so that it can be freed."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io.mapped import element_count, serialized_size

_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Where a type's elements are when they are not raw bytes; all others are in int32_data."""


def element_type(tensor: onnx.TensorProto, what: str) -> ir.DataType:
    """Return the type of a tensor whose type and dimensions are valid.

    Raises:
        ModelError: an unknown type, or a negative dimension.
    """
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        dtype = ir.DataType.UNDEFINED
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(
            f"{what}: its element type is {tensor.data_type}, which the installed onnx "
            f"{onnx.__version__} does not know; upgrade the onnx package, or export it again"
        )
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(
            f"{what}: its dimensions are {list(tensor.dims)}; none may be negative; export it again"
        )
    return dtype


def _entries(dtype: ir.DataType, count: int) -> int:
    """How many entries of its typed field `count` elements take."""
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return 2 * count
    if not dtype.is_string() and dtype.bitwidth in (2, 4):
        return serialized_size(dtype, [count])
    return count


def detach(tensor: ir.TensorProtocol, what: str) -> ir.TensorProtocol:
    """Return a tensor that does not keep the protobuf message, and with it the whole file, alive.

    Args:
        tensor: as the IR reads it.
        what: what messages call it.

    Raises:
        ModelError: too few or too many elements, or some that the type cannot hold.
    """
    if not isinstance(tensor, ir.StringTensor | ir.TensorProtoTensor):
        return tensor
    name = tensor.name or None
    doc = tensor.doc_string or None
    props = dict(tensor.metadata_props) or None
    dims = tuple(tensor.shape.numpy())
    dtype = tensor.dtype
    if isinstance(tensor, ir.StringTensor):
        strings = list(tensor.string_data())
        _check_count(len(strings), element_count(dims), "elements", tensor, what)
        return ir.StringTensor(
            strings, shape=ir.Shape(dims), name=name, doc_string=doc, metadata_props=props
        )
    proto = tensor.raw
    if not proto.HasField("raw_data"):
        held = len(getattr(proto, _FIELDS.get(dtype, "int32_data")))
        _check_count(held, _entries(dtype, element_count(dims)), "elements", tensor, what)
        try:
            array = tensor.numpy()
        except (AssertionError, OverflowError, TypeError, ValueError) as error:
            raise _invalid(what, error) from error
        return ir.Tensor(array, dtype=dtype, name=name, doc_string=doc, metadata_props=props)
    raw = proto.raw_data
    _check_count(len(raw), serialized_size(dtype, dims), "bytes", tensor, what)
    if dtype.bitwidth >= 8:
        kind = dtype.numpy()
        array = np.frombuffer(raw, kind.newbyteorder("<") if sys.byteorder == "big" else kind)
        array = array.reshape(dims)
        return ir.Tensor(array, dtype=dtype, name=name, doc_string=doc, metadata_props=props)
    packed = ir.PackedTensor(
        np.frombuffer(raw, np.uint8),
        dtype,
        shape=dims,
        name=name,
        doc_string=doc,
        metadata_props=props,
    )
    try:
        packed.numpy_packed()
    except ValueError as error:
        raise _invalid(what, error) from error
    return packed


def _check_count(held: int, needed: int, unit: str, tensor: ir.TensorProtocol, what: str) -> None:
    if held != needed:
        raise ModelError(
            f"{what}: holds {held} {unit}, but {tensor.dtype.name.lower()}"
            f"{list(tensor.shape)} takes {needed}; the model is damaged, fetch or export it again"
        )


def _invalid(what: str, error: Exception) -> ModelError:
    return ModelError(f"{what}: its elements are not valid: {error}; export it again")
