"""What callers ask about a model: its inputs, outputs and metadata, as onnxruntime reports them.

They are read from its protobuf, or from a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import onnx
import onnx_ir as ir

from narrowpass_ir.inference import READS_TYPES, infer

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Program
    from narrowpass_ir.verify import ValueSpec


Dim = int | str | None
"""A dimension: its size, its symbolic name, or unknown."""

NO_VERSION = 2**63 - 1
"""What onnxruntime reports as the version of a model that has none."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output; it has the attributes of ``onnxruntime.NodeArg``.

    Attributes:
        name: its name.
        type: such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: the dimensions of a tensor; empty for a scalar, an unknown rank, and other types.
    """

    name: str
    type: str
    shape: list[Dim]

    def __str__(self) -> str:
        """The text that onnxruntime prints of its class."""
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model; it has the attributes of ``onnxruntime.ModelMetadata``."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interface:
    """What callers know of a model.

    Attributes:
        inputs: those that must be fed.
        outputs: in order.
        overridable: inputs with defaults.
        metadata: of the model.
        classes: for each output that is a list of maps, the classes that its columns are of.
        initializers: names of the initializers.
        denotations: of the inputs' dimensions, by input name, where there are any.
    """

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...]
    metadata: ModelMetadata
    classes: Mapping[str, tuple[int | str, ...]]
    initializers: tuple[str, ...]
    denotations: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            "inputs": [vars(arg) for arg in self.inputs],
            "outputs": [vars(arg) for arg in self.outputs],
            "overridable": [vars(arg) for arg in self.overridable],
            "metadata": vars(self.metadata),
            "classes": {name: list(classes) for name, classes in self.classes.items()},
            "initializers": list(self.initializers),
            "denotations": {name: list(each) for name, each in self.denotations.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return what `to_json` was called for.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is something else.
        """
        metadata = _mapping(document["metadata"])
        names = ("producer_name", "graph_name", "domain", "description", "graph_description")
        return cls(
            inputs=_args(document["inputs"]),
            outputs=_args(document["outputs"]),
            overridable=_args(document["overridable"]),
            metadata=ModelMetadata(
                **{name: checked(metadata[name], str) for name in names},
                version=checked(metadata["version"], int),
                custom_metadata_map={
                    name: checked(text, str)
                    for name, text in _mapping(metadata["custom_metadata_map"]).items()
                },
            ),
            classes={
                name: several(each, int, str)
                for name, each in _mapping(document["classes"]).items()
            },
            initializers=several(document["initializers"], str),
            denotations={
                name: several(each, str) for name, each in _mapping(document["denotations"]).items()
            },
        )


def checked(value: Any, *kinds: type) -> Any:
    """Return a value that is of one of some types, exactly.

    Raises:
        TypeError: it is of another.
    """
    if type(value) not in kinds:
        raise TypeError(f"{value!r:.60} is not {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def several(values: Any, *kinds: type) -> tuple[Any, ...]:
    """Return the values of a list, each checked. Raises as `checked` does."""
    return tuple(checked(value, *kinds) for value in checked(values, list))


def _mapping(value: Any) -> dict[str, Any]:
    return dict(checked(value, dict))


def _args(values: Any) -> tuple[NodeArg, ...]:
    return tuple(
        NodeArg(
            checked(arg["name"], str),
            checked(arg["type"], str),
            list(several(arg["shape"], int, str, type(None))),
        )
        for arg in several(values, dict)
    )


OVERRIDABLE_SINCE = 4
"""Version of ONNX's format from which an initializer that is an input too may be overridden."""


def interface_of(proto: onnx.ModelProto) -> Interface:
    """Return the interface of a parsed model. Defaults of old models are no inputs.

    In files before version 4 of the format every initializer is listed as an input, and
    onnxruntime does not let callers override it.
    """
    graph = proto.graph
    names = [tensor.name for tensor in graph.initializer]
    names += [tensor.values.name for tensor in graph.sparse_initializer]
    defaults = set(names)
    old = proto.ir_version < OVERRIDABLE_SINCE
    outputs = _outputs(proto)
    return Interface(
        inputs=tuple(_arg(value) for value in graph.input if value.name not in defaults),
        outputs=tuple(_arg(value) for value in outputs),
        overridable=tuple(
            _arg(value) for value in graph.input if value.name in defaults and not old
        ),
        metadata=_metadata(proto),
        classes=dict(_classes(graph)),
        initializers=tuple(names),
        denotations=dict(_denotations(graph.input)),
    )


def interface_of_program(program: Program) -> Interface:
    """Return what is known of a bundle's method: names, types and shapes, and no metadata."""
    signature = program.signature()
    return Interface(
        inputs=tuple(_arg_of(spec) for spec in signature.inputs if not spec.has_default),
        outputs=tuple(_arg_of(spec) for spec in signature.outputs),
        overridable=tuple(_arg_of(spec) for spec in signature.inputs if spec.has_default),
        metadata=ModelMetadata(),
        classes={},
        initializers=(),
        denotations={},
    )


def _arg_of(spec: ValueSpec) -> NodeArg:
    kind = spec.dtype or ""
    return NodeArg(
        spec.name, f"tensor({kind})" if "(" not in kind else kind, list(spec.shape or ())
    )


def _outputs(proto: onnx.ModelProto) -> Iterable[onnx.ValueInfoProto]:
    """Return the outputs, with sizes that follow from the inputs' where the model has names."""
    outputs = list(proto.graph.output)
    if all(_is_complete(value) for value in outputs):
        return outputs
    light = _without_weights(proto)
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        if any(_reads_types(part.node) for part in (light.graph, *light.functions)):
            model = ir.from_proto(light)
            infer(model)
            inferred = [ir.to_proto(value) for value in model.graph.outputs]
        else:
            inferred = list(onnx.shape_inference.infer_shapes(light).graph.output)
    except Exception:  # noqa: BLE001  # whatever it raises, what is declared stands
        return outputs
    return [_merged(value, found) for value, found in zip(outputs, inferred, strict=True)]


def _reads_types(nodes: Iterable[onnx.NodeProto]) -> bool:
    """Return whether a model is to be inferred node by node: see `READS_TYPES`."""
    return any(
        node.op_type in READS_TYPES
        or any(
            _reads_types(graph.node) for each in node.attribute for graph in (each.g, *each.graphs)
        )
        for node in nodes
    )


def _is_complete(value: onnx.ValueInfoProto) -> bool:
    kind = value.type
    if kind.WhichOneof("value") is None:
        return False
    if kind.WhichOneof("value") != "tensor_type":
        return True
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


_INVENTED = "unk__"
"""How the names begin that shape inference invents for sizes that it does not know."""


def _merged(declared: onnx.ValueInfoProto, inferred: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return an output with its declared dimensions, and inferred ones where these say more."""
    found = inferred.type.tensor_type.shape.dim
    for dim in found:
        if dim.dim_param.startswith(_INVENTED):
            dim.Clear()
    merged = onnx.ValueInfoProto()
    merged.CopyFrom(declared)
    kind = merged.type.WhichOneof("value")
    if kind is None:
        merged.type.CopyFrom(inferred.type)
        return merged
    shape = merged.type.tensor_type.shape
    if kind != "tensor_type" or not inferred.type.tensor_type.HasField("shape"):
        return merged
    if not merged.type.tensor_type.HasField("shape"):
        shape.CopyFrom(inferred.type.tensor_type.shape)
    elif len(shape.dim) == len(found):
        for dim, better in zip(shape.dim, found, strict=True):
            if better.HasField("dim_value") or dim.WhichOneof("value") is None:
                dim.CopyFrom(better)
    return merged


_SMALL = 64
"""Elements of an initializer that shape inference may need: operands such as axes and shapes."""


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose large initializers are inputs, which shape inference need not copy."""
    light = onnx.ModelProto()
    light.ir_version, light.producer_name = proto.ir_version, proto.producer_name
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.value_info.extend(proto.graph.value_info)
    fed = {value.name for value in graph.input}
    for tensor in proto.graph.initializer:
        size = 1
        for dim in tensor.dims:
            size *= dim
        if size <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in fed:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, [*tensor.dims])
            )
    return light


def _arg(value: onnx.ValueInfoProto) -> NodeArg:
    kind = value.type
    which = kind.WhichOneof("value")
    shape: list[Dim] = []
    if which in ("tensor_type", "sparse_tensor_type"):
        shape = [_dim(dim) for dim in getattr(kind, which).shape.dim]
    return NodeArg(value.name, type_text(kind), shape)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None if which == "dim_param" else None


def type_text(kind: onnx.TypeProto) -> str:
    """Return a type as onnxruntime names it, such as ``map(int64,tensor(float))``."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return f"tensor({element_text(kind.tensor_type.elem_type)})"
    if which == "sparse_tensor_type":
        return f"sparse_tensor({element_text(kind.sparse_tensor_type.elem_type)})"
    if which == "sequence_type":
        return f"seq({type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({type_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        key, value = kind.map_type.key_type, kind.map_type.value_type
        return f"map({element_text(key)},{type_text(value)})"
    return ""


def element_text(kind: int) -> str:
    """Return an element type as onnxruntime names it: ``float``, ``int64``, ``bfloat16``."""
    return str(onnx.TensorProto.DataType.Name(kind)).lower()


def _metadata(proto: onnx.ModelProto) -> ModelMetadata:
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version if proto.HasField("model_version") else NO_VERSION,
        custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
    )


def _classes(graph: onnx.GraphProto) -> Iterable[tuple[str, tuple[int | str, ...]]]:
    """Yield the outputs that a ZipMap computes, with its classes."""
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        if (node.domain, node.op_type) == ("ai.onnx.ml", "ZipMap") and node.output[0] in outputs:
            found: list[int | str] = []
            for attribute in node.attribute:
                found += attribute.ints
                found += [item.decode() for item in attribute.strings]
            yield node.output[0], tuple(found)


def _denotations(
    inputs: Iterable[onnx.ValueInfoProto],
) -> Iterable[tuple[str, tuple[str, ...]]]:
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if any(dim.denotation for dim in dims):
            yield value.name, tuple(dim.denotation for dim in dims)
