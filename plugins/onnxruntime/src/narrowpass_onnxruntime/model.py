"""Models as onnxruntime takes them: weights by address, types of numpy at the boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_ir.io import external_reference, serialize, shape_operands

Array = np.ndarray[Any, Any]

_LARGE = 1 << 12
"""Bytes from which a weight is passed by its address, and not in the model."""

_UNKNOWN_TO_NUMPY = {
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}
"""Types that cross the boundary as float32, which holds each of their values."""


@dataclass(frozen=True)
class Prepared:
    """A model for a session of onnxruntime.

    Attributes:
        text: the protobuf, without large weights.
        weights: these, by name.
        outputs: names of the outputs in the protobuf, those of values to keep at the end.
    """

    text: bytes
    weights: dict[str, Array]
    outputs: tuple[str, ...]


def prepare(model: ir.Model, keep: Sequence[str]) -> Prepared:
    """Return a model for a session.

    Inputs and outputs of types that numpy lacks become float32, with a Cast.

    Args:
        model: not changed.
        keep: values that become outputs, too.

    Raises:
        BackendError: an input or output of a type that cannot be fed.
    """
    clone = model.clone()
    clone.metadata_props.clear()
    outputs = [value.name or "" for value in clone.graph.outputs]
    for value in (*clone.graph.inputs, *clone.graph.outputs):
        _check_type(value)
    _cast_inputs(clone.graph)
    kept = [name for name in keep if name not in outputs]
    values = {value.name: value for node in clone.graph for value in node.outputs}
    clone.graph.outputs.extend(values[name] for name in kept)
    _cast_outputs(clone.graph)
    inside = {id(value) for value in shape_operands(clone)}
    weights: dict[str, Array] = {}

    def replaced(scope: str, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = value.const_value
        if scope or tensor is None or tensor.nbytes < _LARGE or id(value) in inside:
            return None
        if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
            return None
        weights[value.name or ""] = tensor.numpy()
        return external_reference(tensor, "weights", 0, tensor.nbytes)

    proto = serialize(clone, replaced)
    _forget_unknown(proto, kept)
    names = tuple(output.name for output in proto.graph.output)
    return Prepared(proto.SerializeToString(), weights, names)


def _check_type(value: ir.Value) -> None:
    dtype = value.type.dtype if isinstance(value.type, ir.TensorType) else None
    if dtype is not None and dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        raise BackendError(
            f"{value.name!r} is {dtype.name.lower()}, which onnxruntime's Python interface can "
            "neither be fed nor return"
        )


def _cast_inputs(graph: ir.Graph) -> None:
    for value in list(graph.inputs):
        if isinstance(value.type, ir.TensorType) and value.type.dtype in _UNKNOWN_TO_NUMPY:
            narrow = value.type.dtype
            uses = list(value.uses())
            value.type = ir.TensorType(ir.DataType.FLOAT)
            if value.is_initializer():
                raise BackendError(
                    f"input {value.name!r} of {narrow.name.lower()} has a default, which "
                    "onnxruntime cannot be fed; run the pass freeze-weights first"
                )
            cast = ir.node("Cast", [value], attributes={"to": narrow.value})
            cast.outputs[0].name = f"{value.name}.narrow"
            if graph:
                graph.insert_before(graph[0], cast)
            else:
                graph.append(cast)
            for use in uses:
                use.node.replace_input_with(use.idx, cast.outputs[0])
            for index, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[index] = cast.outputs[0]


def _cast_outputs(graph: ir.Graph) -> None:
    for index, value in enumerate(list(graph.outputs)):
        if isinstance(value.type, ir.TensorType) and value.type.dtype in _UNKNOWN_TO_NUMPY:
            cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT.value})
            wide = cast.outputs[0]
            wide.name = f"{value.name}.wide"
            wide.type, wide.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
            graph.append(cast)
            graph.outputs[index] = wide


def _forget_unknown(proto: onnx.ModelProto, kept: Sequence[str]) -> None:
    """Leave the types of values to keep to onnxruntime, where the model does not say them."""
    for output in proto.graph.output:
        if output.name in kept and not output.type.WhichOneof("value"):
            output.ClearField("type")
