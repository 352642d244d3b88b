"""The nodes that an output depends on, and the types of their operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_ir.inference import infer


@dataclass(frozen=True)
class Operation:
    """A node of a graph or of a body.

    Attributes:
        node: the node.
        version: of the operator set of ONNX in the model.
        dtype: the element type of its first operand as ONNX calls it in lower case; "" where it is
            unknown, as within bodies.
    """

    node: onnx.NodeProto
    version: int
    dtype: str

    def attribute(self, name: str) -> object:
        """Return the value of an attribute, texts as ``str``; None where it is not written."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return None


def operations(model: onnx.ModelProto, output: str | None = None) -> list[Operation]:
    """Return the nodes of a model with those of bodies.

    Args:
        model: the model.
        output: an output of the graph or of a node: only what it depends on; None for all nodes.
    """
    version = next((i.version for i in model.opset_import if not i.domain), 1)
    types = _types(model)
    wanted = None if output is None else {output}
    found = []
    for node in reversed(model.graph.node):  # each stands behind those that it reads
        if wanted is not None and not wanted.intersection(node.output):
            continue
        for inner in _with_bodies(node):
            first = inner.input[0] if inner.input else ""
            found.append(Operation(inner, version, types.get(first, "") if inner is node else ""))
            if wanted is not None:
                wanted.update(inner.input)
    return found


def read_by(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, those that its subgraphs capture included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = attribute.g
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {name for inner in graph.node for name in inner.output}
            inner_reads = [name for inner in graph.node for name in read_by(inner)]
            inner_reads += [v.name for v in graph.output]
            found += [name for name in inner_reads if name not in own]
    return list(dict.fromkeys(found))


def part_of(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """Return a model with what one output depends on, and nothing else."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    whole, wanted, kept = model.graph, {output}, []
    for node in reversed(whole.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(read_by(node))
    found = {
        "node": kept[::-1],
        "input": [value for value in whole.input if value.name in wanted],
        "initializer": [tensor for tensor in whole.initializer if tensor.name in wanted],
        "output": [value for value in whole.output if value.name == output],
    }
    for field, those in found.items():
        part.graph.ClearField(field)
        getattr(part.graph, field).extend(those)
    return part


def _with_bodies(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and those of its bodies, all the way down."""
    yield node
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _with_bodies(inner)


def _types(model: onnx.ModelProto) -> dict[str, str]:
    """Return the element types of the graph's values, as far as they follow from the inputs'."""
    source = ir.from_proto(model)
    try:
        infer(source)
    except Exception:  # noqa: BLE001  # a model that shrinking broke; types stay unknown
        source = ir.from_proto(model)
    values = [*source.graph.inputs, *source.graph.initializers.values()]
    values += [value for node in source.graph for value in node.outputs]
    return {value.name or "": value.dtype.name.lower() for value in values if value.dtype}
