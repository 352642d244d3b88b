"""Nodes whose results follow from shapes: evaluated when shapes change, not in each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_xnn_cpu.host.nodes import HostNode
from narrowpass_xnn_cpu.lower.deciding import WrongBranchError
from narrowpass_xnn_cpu.lower.facts import Array, Facts
from narrowpass_xnn_cpu.lower.op import GUARD, Op
from narrowpass_xnn_cpu.plan.partition import ShapeNode


def shape_node(op: Op, facts: Facts, model: ir.Model) -> ShapeNode:
    """Return the shape node of an operation that follows from shapes."""
    if op.kind == GUARD:
        return _guard(op)
    if op.kind in ("Shape", "Size"):
        name = op.nodes[0].name or op.output.name or ""
        names = (op.required(0).name or "",), (op.output.name or "",)
        part = slice(op.get("start", 0), op.get("end", None))
        if op.kind == "Shape":
            return ShapeNode(name, *names, True, lambda given: [np.array(given[0], np.int64)[part]])
        return ShapeNode(
            name, *names, True, lambda given: [np.array(math.prod(given[0]), np.int64)]
        )
    node = HostNode(op, facts, model)
    return ShapeNode(node.name, node.operands, node.outputs, False, node.evaluate)


def _guard(op: Op) -> ShapeNode:
    """Return the node that ends a run where an If was decided otherwise."""
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
