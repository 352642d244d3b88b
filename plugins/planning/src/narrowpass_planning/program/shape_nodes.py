"""Shape arithmetic of a graph: nodes that are evaluated when shapes change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_planning.branches import WrongBranchError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import GUARD, Op
from narrowpass_planning.host.nodes import HostNode
from narrowpass_planning.plan.shapes import ShapeNode, ShapeSource

Array = np.ndarray[Any, Any]


def shape_node(op: Op, facts: Facts, model: ir.Model) -> ShapeNode:
    """Return the shape node of an operation whose outputs follow from shapes."""
    if op.kind == GUARD:
        return _guard(op)
    if op.kind in ("Shape", "Size"):
        name = op.nodes[0].name or op.output.name or ""
        names = (op.required(0).name or "",), (op.output.name or "",)
        part = slice(op.get("start", 0), op.get("end", None))
        if op.kind == "Shape":
            return ShapeNode(
                name,
                *names,
                True,
                lambda given: [np.array(given[0], np.int64)[part]],
                _source(op, facts),
            )
        return ShapeNode(
            name,
            *names,
            True,
            lambda given: [np.array(math.prod(given[0]), np.int64)],
            _source(op, facts),
        )
    node = HostNode(op, facts, model)
    source = _source(op, facts) if node.native else None
    return ShapeNode(node.name, node.operands, node.outputs, False, node.evaluate, source)


def _source(op: Op, facts: Facts) -> ShapeSource | None:
    values = (*op.inputs, *op.outputs)
    if values != (*op.nodes[0].inputs, *op.nodes[0].outputs):
        return None  # not as the node says
    dtypes = tuple(None if (dtype := facts.dtype(v)) is None else int(dtype) for v in values)
    node = ir.serde.serialize_node(op.nodes[0]).SerializeToString(deterministic=True)
    return ShapeSource(node, op.version, dtypes)


def rebuilt(source: ShapeSource) -> ShapeNode:
    """Return the shape node that has this source."""
    proto = onnx.NodeProto.FromString(source.node)
    names = (*proto.input, *proto.output)
    values = [
        ir.Value(name=name, type=None if dtype is None else ir.TensorType(ir.DataType(dtype)))
        for name, dtype in zip(names, source.dtypes, strict=True)
    ]
    count = len(proto.input)
    inputs = [value if value.name else None for value in values[:count]]
    del proto.input[:]  # else they are looked for in a graph
    node = ir.Node(
        proto.domain,
        proto.op_type,
        inputs,
        ir.serde.deserialize_node(proto).attributes.values(),
        outputs=values[count:],
        name=proto.name,
    )
    graph = ir.Graph((), (), nodes=(node,))
    model = ir.Model(graph, ir_version=onnx.IR_VERSION)
    return shape_node(Op.of(node, source.version), Facts(graph), model)


def _guard(op: Op) -> ShapeNode:
    """Return a shape node that raises where the condition of an inlined If has changed."""
    label, compiled = op.attributes["label"], bool(op.attributes["taken"])

    def check(given: Sequence[Any]) -> list[Array]:
        (condition,) = given
        taken = bool(condition.item())
        if taken != compiled:
            raise WrongBranchError(label, taken)
        return [condition]

    return ShapeNode(
        op.nodes[0].name or label,
        (op.required(0).name or "",),
        (op.output.name or "",),
        False,
        check,
    )
