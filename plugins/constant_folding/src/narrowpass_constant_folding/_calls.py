"""A node in the form that onnx's inference and reference evaluator take."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_constant_folding._operands import Operand


@dataclass(frozen=True)
class Call:
    """One evaluation of a node.

    Attributes:
        node: the node; its inputs and outputs are renamed by position, so that equal nodes are
            equal calls. Values that its subgraphs capture keep their names.
        opsets: the operator-set versions that it is read with.
        operands: all that it reads, by name.
        results: names of the outputs; empty where the node leaves one out.
    """

    node: onnx.NodeProto
    opsets: Mapping[str, int]
    operands: Mapping[str, Operand]
    results: tuple[str, ...]

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What decides the result's types, where they do not depend on data."""
        types = tuple((item.dtype, item.dims) for item in self.operands.values())
        return self.node.SerializeToString(deterministic=True), tuple(self.opsets.items()), types

    def types(self) -> dict[str, onnx.TypeProto]:
        """Give the types of the operands."""
        return {
            name: _tensor_type(int(item.dtype), item.dims) for name, item in self.operands.items()
        }


def make_call(
    node: ir.Node,
    inputs: Sequence[Operand | None],
    captured: Mapping[str, Operand],
    opsets: Mapping[str, int],
) -> Call:
    """Give the call of `node` with these inputs (None for one left out) and captured values."""
    if captured or any(value.type == ir.AttributeType.GRAPH for value in node.attributes.values()):
        proto = ir.serde.serialize_node(node)
        del proto.input[:], proto.output[:]
    else:
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        for attribute in node.attributes.values():
            ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
    proto.name = ""
    proto.doc_string = ""
    operands = dict(captured)
    for index, operand in enumerate(inputs):
        name = "" if operand is None else f"#{index}"
        proto.input.append(name)
        if operand is not None:
            operands[name] = operand
    results = tuple(f"#out{i}" if value.name else "" for i, value in enumerate(node.outputs))
    proto.output.extend(results)
    return Call(proto, opsets, operands, results)


@functools.lru_cache(maxsize=1024)
def _tensor_type(dtype: int, dims: tuple[int, ...]) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, dims)
