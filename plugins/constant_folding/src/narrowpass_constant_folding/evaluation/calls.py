"""One evaluation of a node, as onnx's shape inference and reference evaluator take it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.operands import Operand


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
