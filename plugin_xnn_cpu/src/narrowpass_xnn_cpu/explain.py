"""What `explain` tells of a compiled method: where each node runs, and why not natively."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from narrowpass.framework.classify import ACCUMULATE
from narrowpass.runtime.backend import NodePlan
from narrowpass_xnn_cpu.host.control_flow import ControlFlow
from narrowpass_xnn_cpu.host.nodes import HostNode, HostUnit
from narrowpass_xnn_cpu.lower.assign import Assigned, Unit, Where
from narrowpass_xnn_cpu.lower.facts import NARROW
from narrowpass_xnn_cpu.lower.op import GUARD, OUR_DOMAIN
from narrowpass_xnn_cpu.native import cpu
from narrowpass_xnn_cpu.plan.partition import Partition


def plans_of_units(
    method: str, units: Sequence[Unit], compiled: Sequence[Partition | HostUnit]
) -> tuple[NodePlan, ...]:
    """Tell where the nodes of units run; of one that is computed twice, with bytes too, once."""
    plans: list[NodePlan] = []
    told: set[ir.Node] = set()
    for unit, made in zip(units, compiled, strict=True):
        kernels: dict[str, list[str]] = {}
        precisions: dict[str, str] = {}
        if isinstance(made, Partition):
            for step in made.steps:
                for node in step.nodes:
                    kernels.setdefault(node, []).append(step.kernel)
                    if step.precision:
                        precisions[node] = step.precision
        else:
            for item in made.items:
                if isinstance(item, HostNode | ControlFlow):
                    kernels[item.name] = [item.kernel]
                if isinstance(item, ControlFlow):
                    plans += item.plans
        number = made.number if isinstance(made, Partition) else None
        for entry in unit.ops:
            nodes = (*entry.op.superseded, *entry.op.nodes)
            fresh = [node for node in nodes if node not in told]
            told.update(fresh)
            plans += _plans_of(method, entry, fresh, number, kernels, precisions)
    return tuple(plans)


def plans_of_weights(method: str, assigned: Sequence[Assigned]) -> list[NodePlan]:
    """Tell of the nodes that are done when weights are packed."""
    entries = [entry for entry in assigned if entry.where is Where.WEIGHTS]
    return [
        plan for entry in entries for plan in _plans_of(method, entry, entry.op.nodes, None, {}, {})
    ]


def _sums(node: ir.Node, precision: str) -> str:
    """Tell that sums are not kept in what the model asks for."""
    asked = node.metadata_props.get(ACCUMULATE, "")
    halves = precision.startswith("float16") and not cpu.sums_halves_in_float32()
    kept = "float16" if halves else "float32"
    return f", sums in {kept} and not {asked}" if asked not in ("", kept) else ""


_AXES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def _nothing(node: ir.Node) -> str:
    """Tell of a node that has no step: its result is another value, or a part of a step."""
    return "renamed axes" if node.op_type in _AXES else "no step of its own"


def _computed_in(node: ir.Node, entry: Assigned, kernel: str) -> str:
    """Give the type that a node is computed in: bytes where floats are only how it is written."""
    dtype = node.outputs[0].dtype if node.outputs else None
    if dtype == ir.DataType.FLOAT and entry.where is Where.NATIVE:
        operators = {each.op_type for each in (*entry.op.superseded, *entry.op.nodes)}
        joined = len(operators) > 1 and "DequantizeLinear" in operators
        # Rows that are gathered from bytes are floats when they come.
        bytes_to_bytes = "int8" in kernel.split() and "Gather" not in operators
        if "(weights)" not in kernel and (bytes_to_bytes or joined):
            return ir.DataType.INT8.name.lower()
    return "" if dtype is None else dtype.name.lower()


def _op_type(node: ir.Node) -> str:
    if node.domain == OUR_DOMAIN and node.op_type == GUARD:
        return "If"
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _plans_of(
    method: str,
    entry: Assigned,
    nodes: Sequence[ir.Node],
    number: int | None,
    kernels: Mapping[str, Sequence[str]],
    precisions: Mapping[str, str],
) -> list[NodePlan]:
    plans = []
    for node in nodes:
        name = node.name or next((value.name for value in node.outputs if value.name), "")
        dtype = node.outputs[0].dtype if node.outputs else None
        if entry.where is Where.NATIVE:
            steps = " + ".join(dict.fromkeys(kernels.get(name, ())))
            kernel = steps or _nothing(node)
            if steps and (dtype in NARROW or name in precisions):
                precision = precisions.get(name, "float32")
                kernel += f" in {precision}{_sums(node, precision)}"
        elif entry.where is Where.SHAPES:
            kernel = "decided by shapes" if entry.op.kind == GUARD else "shape arithmetic"
        elif entry.where is Where.WEIGHTS:
            kernel = "packed with the weights"
        else:
            (kernel,) = kernels[name]
        fallback = entry.where is Where.HOST and kernel == "onnx.reference"
        plans.append(
            NodePlan(
                method=method,
                node=name,
                op_type=_op_type(node),
                dtype=_computed_in(node, entry, kernel),
                partition=number if entry.where is Where.NATIVE else None,
                kernel=kernel,
                reason=entry.reason if fallback else "",
            )
        )
    return plans
