"""From the IR to protobuf, with some initializers written as references into other files."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from narrowpass_ir.errors import ModelError, NarrowpassError
from narrowpass_ir.io._inline import detach
from narrowpass_ir.io._walk import containers, initializers, proto_containers, proto_tensors

Replace = Callable[[str, ir.Value], ir.TensorProtocol | None]
"""Asked for each initializer, with its scope: what to write for it, None for its own data."""


def external_reference(
    tensor: ir.TensorProtocol, location: str, offset: int, length: int
) -> ir.ExternalTensor:
    """Return what `serialize` writes for a tensor whose bytes lie in another file.

    Args:
        tensor: has type, shape and texts.
        location: the file, relative to the model's folder, with forward slashes.
        offset: of the first byte.
        length: the number of bytes.
    """
    return ir.ExternalTensor(
        location,
        offset,
        length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def serialize(model: ir.Model, replace: Replace) -> onnx.ModelProto:
    """Turn a model into protobuf. The model is the same afterwards.

    Args:
        model: any model. While this runs, its initializers are changed: it must not be used
            elsewhere in the meantime.
        replace: called once for each initializer of the graph and of all subgraphs, in the
            order of the model, with the scope (empty for the main graph, unique for each
            subgraph) and the value.

    Raises:
        ModelError: a tensor without data, or that refers to a file that is not open; or what
            protobuf cannot say.
    """
    _refuse_foreign_attributes(model)
    undo: list[tuple[ir.Value, ir.TensorProtocol, str | None]] = []
    try:
        for scope, value in initializers(model):
            tensor = value.const_value
            if tensor is None:
                raise ModelError(
                    f"initializer {value.name!r} has no data; set its tensor, or remove it"
                )
            undo.append((value, tensor, tensor.name))
            other = replace(scope, value)
            if other is None:
                other = _normalized(tensor)
            if other is not None:
                value.const_value = other
        proto = ir.to_proto(model)
    except ir.serde.SerdeError as error:
        raise _explained(error) from error
    finally:
        # The IR's writer names every tensor after its value.
        for value, tensor, name in reversed(undo):
            value.const_value = tensor
            if tensor.name != name:
                tensor.name = name
    _drop_repeated_props(proto)
    _drop_repeated_types(proto)
    return proto


def _normalized(tensor: ir.TensorProtocol) -> ir.TensorProtocol | None:
    """Return what the IR's writer should write in place of `tensor`; None for the tensor itself."""
    if isinstance(tensor, ir.ExternalTensor):
        return _loaded(tensor)
    if isinstance(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        # Else the file would change when it is read and written again.
        return detach(tensor, f"initializer {tensor.name!r}")
    return None


def _loaded(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    try:
        return ir.Tensor(
            tensor.numpy(),
            dtype=tensor.dtype,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name!r}: {error}") from error


def _refuse_foreign_attributes(model: ir.Model) -> None:
    for _, container in containers(model):
        for node in container:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and isinstance(
                    attribute.value, ir.ExternalTensor
                ):
                    raise ModelError(
                        f"attribute {attribute.name!r} of node {node.name!r} is in a file beside "
                        "the model it came from; read that model with narrowpass_ir.io.load_model"
                    )


def _explained(error: BaseException) -> NarrowpassError:
    cause = root_cause(error)
    if isinstance(cause, NarrowpassError):
        return cause
    text = one_line(cause)
    return ModelError(f"the model cannot be turned into protobuf: {text}")


def root_cause(error: BaseException) -> BaseException:
    """Return the innermost exception that led to `error`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def one_line(error: BaseException) -> str:
    """Return what an exception says, in one line of bounded length."""
    text = " ".join(str(error).split())
    return (text[:300] or type(error).__name__).rstrip(".")


def _drop_repeated_props(proto: onnx.ModelProto) -> None:
    # The IR's writer copies a tensor that it read from protobuf, then adds its properties again.
    for _, tensor in proto_tensors(proto):
        if len(tensor.metadata_props) > 1:
            props = {entry.key: entry.value for entry in tensor.metadata_props}
            del tensor.metadata_props[:]
            for key in sorted(props):
                tensor.metadata_props.add(key=key, value=props[key])


def _drop_repeated_types(proto: onnx.ModelProto) -> None:
    # The IR's writer declares every initializer, which says its type and shape itself. Without
    # this a file would grow by being read and written.
    for container in proto_containers(proto):
        if not isinstance(container, onnx.GraphProto) or not container.initializer:
            continue
        names = {tensor.name for tensor in container.initializer}
        declared = [
            info
            for info in container.value_info
            if info.name not in names or info.doc_string or info.metadata_props
        ]
        if len(declared) < len(container.value_info):
            del container.value_info[:]
            container.value_info.extend(declared)
