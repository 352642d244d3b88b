"""Result types and shapes of a call, before it is evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.calls import Array, Call, Operand
from narrowpass_constant_folding.graphs.matching import schema_of
from narrowpass_ir.inferred_types import infer_node_types

_OPERAND_ELEMENTS = 1024
"""Larger inputs are data, not shapes, axes or repeats that a result's shape depends on."""

_CACHED = 4096


@dataclass(frozen=True)
class ResultType:
    """What is known of a result.

    Attributes:
        dtype: its element type; None where unknown, or where it is no tensor.
        dims: its shape, None for an unknown dimension; None where not even the rank is known.
        is_tensor: whether it may be a tensor.
    """

    dtype: ir.DataType | None
    dims: tuple[int | None, ...] | None
    is_tensor: bool = True

    @property
    def nbytes(self) -> int | None:
        """The bytes that it takes in a file, where that is known beforehand."""
        if self.dtype is None or self.elements is None or self.dtype == ir.DataType.STRING:
            return None
        return math.ceil(self.elements * self.dtype.bitwidth / 8)

    @property
    def elements(self) -> int | None:
        """The number of elements, where that is known beforehand."""
        if self.dims is None:
            return None
        known = [dim for dim in self.dims if dim is not None]
        return math.prod(known) if len(known) == len(self.dims) else None


UNKNOWN = ResultType(None, None)
NO_TENSOR = ResultType(None, None, is_tensor=False)


class Inference:
    """Infers result types with onnx's schemas, remembering those of equal calls."""

    def __init__(self) -> None:
        """Start with nothing remembered."""
        self._known: dict[object, dict[str, ResultType]] = {}

    def results(self, call: Call) -> Mapping[str, ResultType]:
        """Return what is known of each result, by name; empty where nothing can be inferred."""
        found = self._cached(call, call.key, {})
        if _complete(call, found):
            return found
        names = list(call.node.input)
        # Axes, shapes and repeats mostly come after the data, and recur where the data does not.
        for tried in (names[1:], names):
            data = _data(call, tried)
            if not data:
                continue
            contents = tuple((name, array.tobytes()) for name, array in data.items())
            found = self._cached(call, (call.key, contents), data) or found
            if _complete(call, found):
                break
        return found

    def _cached(
        self, call: Call, key: object, data: Mapping[str, Array]
    ) -> Mapping[str, ResultType]:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            found = self._known[key] = _infer(call, data)
        return found


def _infer(call: Call, data: Mapping[str, Array]) -> dict[str, ResultType]:
    node = call.node
    version = call.opsets.get(node.domain, 0)
    schema = schema_of(node.domain, node.op_type, version)
    if schema is None:
        return {}
    tensors = {name: onnx.numpy_helper.from_array(array, name) for name, array in data.items()}
    imports = [onnx.helper.make_opsetid(domain, number) for domain, number in call.opsets.items()]
    try:
        types = infer_node_types(schema, node, call.types(), tensors, imports)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError):
        return {}  # the evaluation raises the same error and reports it
    return {name: _result_type(proto) for name, proto in types.items()}


def _complete(call: Call, found: Mapping[str, ResultType]) -> bool:
    return all(found.get(name, UNKNOWN).elements is not None for name in call.results if name)


def _data(call: Call, names: Sequence[str]) -> dict[str, Array]:
    """Read the inputs that a result's shape may depend on: small ones, and no text."""
    return {
        name: call.operands[name].read()
        for name in names
        if name and _may_size_result(call.operands[name])
    }


def _may_size_result(operand: Operand) -> bool:
    if operand.tensor is None or operand.dtype == ir.DataType.STRING:
        return False
    return operand.size <= _OPERAND_ELEMENTS


def _result_type(proto: onnx.TypeProto) -> ResultType:
    if not proto.HasField("tensor_type"):
        return UNKNOWN if proto.WhichOneof("value") is None else NO_TENSOR
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return ResultType(dtype, None)
    dims = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return ResultType(dtype, tuple(dims))
