"""The stages of lowering, each as a printable plan; no stage packs weights.

``canonicalize``
    the input of lowering: types inferred, functions inlined, operators of other domains
    expanded, branches whose condition follows from shapes resolved;
``fuse``
    nodes fused into operations, with their epilogues;
``partition``
    operations assigned to native partitions, the host, shapes and weights, with reasons, and
    scheduled;
``layout``
    native operations lowered to computations of slots, each with an order of axes;
``select``
    the kernel of each computation, how it packs constants, and why it was selected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from narrowpass.errors import UsageError
from narrowpass_planning.graph.constants import derive_constants
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.partitioner.assign import assign
from narrowpass_planning.partitioner.assignment import Assignment, Target
from narrowpass_planning.partitioner.schedule import schedule
from narrowpass_planning.program.lowering import Source
from narrowpass_planning.program.shape_nodes import shape_node
from narrowpass_planning.program.units import is_native, outputs_of
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.fusion.operations import operations
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.unit import UnitLowering
from narrowpass_xnn_cpu.lowered.graph import GraphOp, GraphValue
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.plan import LoweredPlan, Section
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue

STAGES = ("canonicalize", "fuse", "partition", "layout", "select")

_PLACES = {Target.HOST: "host", Target.SHAPES: "shapes", Target.WEIGHTS: "weights"}


def plan_of(
    stage: str,
    method: str,
    model: ir.Model,
    identities: Mapping[int, str | Weight] | None = None,
    numerics: Numerics = DEFAULT,
) -> LoweredPlan:
    """Return the plan of a method after a stage.

    Args:
        stage: one of `STAGES`.
        method: the method's name.
        model: canonical: with types and shapes inferred.
        identities: names of the contents of tensors, by their ``id``.
        numerics: which roundings kernels may choose.

    Raises:
        UsageError: there is no such stage.
        BackendError: an operation that cannot be lowered.
    """
    if stage not in STAGES:
        raise UsageError(f"there is no stage {stage!r}; there are {', '.join(STAGES)}")
    stages = _Stages(model, identities, numerics)
    sections = {
        "canonicalize": stages.canonical,
        "fuse": stages.fused,
        "partition": stages.partitioned,
        "layout": stages.lowered,
        "select": stages.selected,
    }[stage]()
    return LoweredPlan(stage, method, tuple(sections))


class _Stages:
    def __init__(
        self,
        model: ir.Model,
        identities: Mapping[int, str | Weight] | None,
        numerics: Numerics,
    ) -> None:
        self._model, self._numerics = model, numerics
        self._facts = Facts(model.graph, identities=identities)

    def _version(self, node: ir.Node) -> int:
        return node.version or self._model.opset_imports.get(node.domain, 1)

    def canonical(self) -> list[Section]:
        nodes = self._model.graph
        return [self._section("graph", [Op.of(node, self._version(node)) for node in nodes])]

    def _operations(self) -> list[Op]:
        derive_constants(self._model.graph, self._facts, self._version)
        return operations(self._model.graph, self._facts, self._model, self._version)

    def fused(self) -> list[Section]:
        return [self._section("graph", self._operations())]

    def partitioned(self) -> list[Section]:
        assigned = assign(self._operations(), self._facts, rules.reason)
        sections = [self._weights(assigned)]
        for unit in schedule(assigned):
            if is_native(unit):
                sections.append(self._section("native", unit.ops))
            else:
                sections += self._host(unit.ops)
        return [section for section in sections if section.body]

    def lowered(self) -> list[Section]:
        assigned = assign(self._operations(), self._facts, rules.reason)
        units = schedule(assigned)
        sections = [self._weights(assigned)]
        for unit, outputs in zip(units, outputs_of(units, self._facts), strict=True):
            if not is_native(unit):
                sections += self._host(unit.ops)
                continue
            items = [
                shape_node(entry.op, self._facts, self._model)
                if entry.target is Target.SHAPES
                else entry.op
                for entry in unit.ops
            ]
            source = Source(0, items, outputs, self._facts, None, Workspace(0))
            lowering = UnitLowering(source, self._numerics)
            sections.append(Section("native", lowering.lower()[1]))
        return [section for section in sections if section.body]

    def selected(self) -> list[Section]:
        processor = target.current()
        sections = []
        for section in self.lowered():
            ops = section.body.ops if isinstance(section.body, LoweredPartition) else ()
            facts = {op: op.computation.select(op, processor).facts() for op in ops}
            sections.append(dataclasses.replace(section, facts=facts))
        return sections

    def _weights(self, assigned: Sequence[Assignment[Op]]) -> Section:
        return self._section("weights", [e for e in assigned if e.target is Target.WEIGHTS])

    def _host(self, entries: Sequence[Assignment[Op]]) -> list[Section]:
        return [
            self._section(_PLACES[where], [e for e in entries if e.target is where])
            for where in (Target.SHAPES, Target.HOST)
        ]

    def _section(self, place: str, entries: Sequence[Op | Assignment[Op]]) -> Section:
        return Section(place, tuple(self._graph_op(entry) for entry in entries))

    def _graph_op(self, entry: Op | Assignment[Op]) -> GraphOp:
        op, reason = (entry, "") if isinstance(entry, Op) else (entry.op, entry.reason)
        names = (
            node.name or next((v.name for v in node.outputs if v.name), "") for node in op.nodes
        )
        epilogue = op.epilogue
        return GraphOp(
            op.kind,
            op.version,
            tuple(None if value is None else value.name or "" for value in op.inputs),
            tuple(map(self._graph_value, op.outputs)),
            tuple(op.attributes.items()),
            None if epilogue == Epilogue() else epilogue,
            None if op.residual is None else op.residual.name or "",
            tuple(name or "" for name in names),
            reason,
        )

    def _graph_value(self, value: ir.Value) -> GraphValue:
        dtype = self._facts.dtype(value)
        return GraphValue(
            value.name or "", None if dtype is None else dtype.name.lower(), self._facts.dims(value)
        )
