"""Units of operations compiled: partitions of the backend, and nodes that run outside of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host.bodies import Compiled
from narrowpass_planning.host.control_flow import ControlFlow, can_run
from narrowpass_planning.host.nodes import HostNode, HostUnit
from narrowpass_planning.partitioner.assignment import Target, Unit
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.program.context import CompileContext
from narrowpass_planning.program.lowering import Source
from narrowpass_planning.program.shape_nodes import shape_node
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.operators import CAUSAL_MASK, DOMAIN
from narrowpass_planning.weights.weight import Weight


def compile_units(
    name: str, units: Sequence[Unit[Any]], facts: Facts, model: ir.Model, context: CompileContext
) -> list[Partition | HostUnit]:
    """Compile the units of a method in order: partitions are lowered, host units are not."""
    compiled: list[Partition | HostUnit] = []
    number = 0
    for unit, given in zip(units, outputs_of(units, facts), strict=True):
        if is_native(unit):
            source = source_of(unit, number, given, facts, model, context)
            compiled.append(context.lowering.lower(source))
            number += 1
            continue
        for entry in unit.ops:
            if entry.op.nodes and entry.op.nodes[0].domain == DOMAIN:
                what = (
                    "is no mask of attention"
                    if entry.op.kind == CAUSAL_MASK
                    else "is not appended to"
                )
                raise AppendError(f"{entry.op.output.name!r} {what}: {entry.reason}")
        items = [
            shape_node(entry.op, facts, model)
            if entry.target is Target.SHAPES
            else _host_node(entry.op, facts, model, name, context)
            for entry in unit.ops
        ]
        compiled.append(HostUnit(items, tuple(value.name or "" for value in given)))
    return compiled


def is_native(unit: Unit[Any]) -> bool:
    """Return whether a unit is a partition of the backend."""
    return any(entry.target is Target.NATIVE for entry in unit.ops)


def outputs_of(units: Sequence[Unit[Any]], facts: Facts) -> list[list[ir.Value]]:
    """Return for each unit the values that other units, or users outside of the graph, read."""
    owner = {id(e.op): i for i, unit in enumerate(units) for e in unit.ops}
    read_by: dict[str, set[int]] = {}
    for unit in units:
        for entry in unit.ops:
            if entry.op.kind in ("Shape", "Size") and entry.target is Target.SHAPES:
                continue
            for value in entry.op.reads():
                read_by.setdefault(value.name or "", set()).add(owner[id(entry.op)])
    found = []
    for index, unit in enumerate(units):
        wanted = facts.given if is_native(unit) else facts.needed
        found.append(
            [
                value
                for entry in unit.ops
                for value in entry.op.outputs
                if value.name
                and value.name not in facts.fixed
                and (value.name in wanted or read_by.get(value.name, set()) - {index})
            ]
        )
    return found


def source_of(
    unit: Unit[Any],
    number: int,
    outputs: Sequence[ir.Value],
    facts: Facts,
    model: ir.Model,
    context: CompileContext,
) -> Source[Any]:
    """Return a native unit as the input of `Lowering.lower`.

    Args:
        unit: native.
        number: of the partition within its method.
        outputs: the values that other units read.
        facts: of the graph.
        model: has the operator sets and functions.
        context: the weights cache's session, and the workspace.
    """
    items = [
        shape_node(entry.op, facts, model) if entry.target is Target.SHAPES else entry.op
        for entry in unit.ops
    ]
    return Source(number, items, outputs, facts, context.session, context.workspace)


def _host_node(
    op: Op, facts: Facts, model: ir.Model, method: str, context: CompileContext
) -> HostNode | ControlFlow:
    if not can_run(op):
        return HostNode(op, facts, model, context.lowering.evaluate)

    def compile_(inner: ir.Model, identities: Mapping[int, Weight]) -> Compiled:
        context.lowering.infer(inner)
        known = {**context.identities, **identities}
        within = dataclasses.replace(context, identities=known)
        return context.compile(method, inner, within)

    return ControlFlow(op, facts, model, compile_, context.lowering.repeat)
