"""Types of values, in a form that can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import dims_of, dtype_of

Dim = int | str | None
"""The size of a dimension, its name, or None where nothing is known."""

Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Type:
    """What is known of a value's type.

    Attributes:
        dtype: the element type of a tensor; None where unknown.
        dims: the shape of a tensor; None where not even the rank is known.
        other: the type of what is no tensor, as ONNX serializes it.
    """

    dtype: ir.DataType | None = None
    dims: Dims | None = None
    other: bytes = b""


UNKNOWN = Type()


def type_of(value: ir.Value) -> Type:
    """Return what the model declares of a value."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return Type(other=ir.serde.serialize_type(value.type).SerializeToString())
    return Type(dtype_of(value), dims_of(value))


def to_proto(type_: Type) -> onnx.TypeProto:
    """Return the type in ONNX's form."""
    if type_.other:
        other: onnx.TypeProto = onnx.TypeProto.FromString(type_.other)
        return other
    if type_.dtype is None:
        return onnx.TypeProto()
    proto: onnx.TypeProto = onnx.helper.make_tensor_type_proto(int(type_.dtype), type_.dims)
    return proto


def from_proto(proto: onnx.TypeProto) -> Type:
    """Read a type in ONNX's form."""
    if proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return Type(other=proto.SerializeToString())
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Type(dtype)
    return Type(
        dtype,
        tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in tensor.shape.dim
        ),
    )


@dataclass(frozen=True)
class Merged:
    """What two sources say of one type, together.

    Attributes:
        type: the more that both know.
        contradiction: where they do not fit, as a sentence; empty where they do.
    """

    type: Type
    contradiction: str = ""


def merge(declared: Type, inferred: Type) -> Merged:
    """Add what is inferred to what is declared; where they do not fit, the declaration stays."""
    if declared == inferred or inferred == UNKNOWN:
        return Merged(declared)
    if declared == UNKNOWN:
        return Merged(inferred)
    if declared.other or inferred.other:
        if bool(declared.other) == bool(inferred.other):
            return Merged(declared)  # a sequence of tensors, whose shapes may be known better
        return Merged(declared, "one is a tensor and the other is not")
    if None not in (declared.dtype, inferred.dtype) and declared.dtype != inferred.dtype:
        return Merged(declared, f"{_name(declared)} is declared, {_name(inferred)} is inferred")
    dtype = declared.dtype or inferred.dtype
    if declared.dims is None or inferred.dims is None:
        dims = inferred.dims if declared.dims is None else declared.dims
        return Merged(Type(dtype, dims))
    if len(declared.dims) != len(inferred.dims):
        ranks = f"rank {len(declared.dims)} is declared, {len(inferred.dims)} is inferred"
        return Merged(declared, ranks)
    dims = tuple(map(_merge_dims, declared.dims, inferred.dims))
    for old, new in zip(declared.dims, inferred.dims, strict=True):
        if isinstance(old, int) and isinstance(new, int) and old != new:
            shapes = f"{list(declared.dims)} is declared, {list(inferred.dims)} is inferred"
            return Merged(declared, shapes)
    return Merged(Type(dtype, dims))


def _merge_dims(declared: Dim, inferred: Dim) -> Dim:
    if isinstance(declared, int) or inferred is None:
        return declared
    if isinstance(inferred, int) or declared is None:
        return inferred
    return declared


def common(left: Type, right: Type) -> Type:
    """Return what holds for a value that has the one type or the other."""
    if left == right:
        return left
    if left.other or right.other or left.dtype != right.dtype:
        return UNKNOWN
    if left.dims is None or right.dims is None or len(left.dims) != len(right.dims):
        return Type(left.dtype)
    return Type(
        left.dtype,
        tuple(
            one if one == other else None for one, other in zip(left.dims, right.dims, strict=True)
        ),
    )


def _name(type_: Type) -> str:
    return "no type" if type_.dtype is None else type_.dtype.name.lower()
