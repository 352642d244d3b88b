"""The report of `explain`: the kernel that runs each node, or the reason of a fallback."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass_planning.graph.facts import NARROW
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, name_of
from narrowpass_planning.host.control_flow import ControlFlow
from narrowpass_planning.host.nodes import HostNode, HostUnit
from narrowpass_planning.partitioner import Assignment, Target, Unit
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.program.lowering import Lowering


def plans_of_units(
    method: str,
    units: Sequence[Unit[Any]],
    compiled: Sequence[Partition | HostUnit],
    lowering: Lowering[Any],
) -> tuple[NodePlan, ...]:
    """Return the plans of the nodes of units; one that is computed in two types is listed once."""
    plans: list[NodePlan] = []
    listed: set[ir.Node] = set()
    for unit, part in zip(units, compiled, strict=True):
        kernels: dict[str, list[str]] = {}
        precisions: dict[str, str] = {}
        evaluated: set[str] = set()
        if isinstance(part, Partition):
            for step in part.steps:
                for node in step.nodes:
                    kernels.setdefault(node, []).append(step.kernel)
                    if step.precision:
                        precisions[node] = step.precision
        else:
            for item in part.items:
                if isinstance(item, HostNode | ControlFlow):
                    kernels[item.name] = [item.kernel]
                if isinstance(item, HostNode) and not item.native:
                    evaluated.add(item.name)
                if isinstance(item, ControlFlow):
                    plans += item.plans
        number = part.number if isinstance(part, Partition) else None
        for entry in unit.ops:
            nodes = (*entry.op.superseded, *entry.op.nodes)
            fresh = [node for node in nodes if node not in listed]
            listed.update(fresh)
            plans += _plans_of(
                method, entry, fresh, number, kernels, precisions, lowering, evaluated
            )
    return tuple(plans)


def plans_of_weights(
    method: str, assigned: Sequence[Assignment[Any]], lowering: Lowering[Any]
) -> list[NodePlan]:
    """Return the plans of the nodes that are evaluated when weights are packed."""
    entries = [entry for entry in assigned if entry.target is Target.WEIGHTS]
    return [
        plan
        for entry in entries
        for plan in _plans_of(method, entry, entry.op.nodes, None, {}, {}, lowering)
    ]


_AXES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def _nothing(node: ir.Node) -> str:
    """Describe a node that has no step: its output is a view of another, or it is fused."""
    return "renamed axes" if node.op_type in _AXES else "no step of its own"


def _op_type(node: ir.Node) -> str:
    if node.domain == OUR_DOMAIN and node.op_type == GUARD:
        return "If"
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _plans_of(
    method: str,
    entry: Assignment[Any],
    nodes: Sequence[ir.Node],
    number: int | None,
    kernels: Mapping[str, Sequence[str]],
    precisions: Mapping[str, str],
    lowering: Lowering[Any],
    evaluated: Container[str] = (),
) -> list[NodePlan]:
    plans = []
    for node in nodes:
        name = name_of(node)
        dtype = node.outputs[0].dtype if node.outputs else None
        if entry.target is Target.NATIVE:
            steps = " + ".join(dict.fromkeys(kernels.get(name, ())))
            kernel = steps or _nothing(node)
            if steps and (dtype in NARROW or name in precisions):
                precision = precisions.get(name, "float32")
                kernel += f" in {precision}{lowering.precision_note(node, precision)}"
        elif entry.target is Target.SHAPES:
            kernel = "decided by shapes" if entry.op.kind == GUARD else "shape arithmetic"
        elif entry.target is Target.WEIGHTS:
            kernel = "packed with the weights"
        else:
            (kernel,) = kernels[name]
        fallback = entry.target is Target.HOST and name in evaluated
        plans.append(
            NodePlan(
                method=method,
                node=name,
                op_type=_op_type(node),
                dtype=lowering.computed_in(node, entry, kernel),
                partition=number if entry.target is Target.NATIVE else None,
                kernel=kernel,
                reason=entry.reason if fallback else "",
            )
        )
    return plans
