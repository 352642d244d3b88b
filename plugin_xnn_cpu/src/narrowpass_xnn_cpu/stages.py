"""The stages of lowering, each as a printable plan: ``narrowpass explain --stage``.

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
    the kernel of each computation, how it packs constants, and why it was selected;
``pack``
    the kernel of each packed operation, and the bytes of its packed weights;
``bind``
    for inputs of zeros: each output's shape and memory, and the call of the tape.

The stages before ``pack`` pack no weights, and do not need the native library.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.graph.constants import derive_constants
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import name_of
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.partitioner import Assignment, Target, assign, schedule
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.program.compiled_graph import is_native, outputs_of
from narrowpass_planning.program.lowering import Source
from narrowpass_planning.program.method import canonical
from narrowpass_planning.program.models import inferred
from narrowpass_planning.program.shape_nodes import shape_node
from narrowpass_planning.weights import names
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lower import rules
from narrowpass_xnn_cpu.lower.fusion.operations import operations
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lowered.op import LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.plan import LoweredPlan, Section, text_of
from narrowpass_xnn_cpu.lowering import XnnLowering, lower_unit
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.program import XnnProgram

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle

STAGES = ("canonicalize", "fuse", "partition", "layout", "select", "pack", "bind")
"""In the order in which they run. The last two need the native library."""

_PLACES = {Target.HOST: "host", Target.SHAPES: "shapes", Target.WEIGHTS: "weights"}


def plans(
    bundle: Bundle, stage: str, options: CompileOptions, numerics: Numerics = DEFAULT
) -> Iterator[LoweredPlan]:
    """Return the plan of each method after a stage.

    Args:
        bundle: its methods.
        stage: one of `STAGES`.
        options: see `CompileOptions`.
        numerics: which roundings kernels may choose.

    Raises:
        BackendError: a method that cannot be lowered.
        UsageError: there is no such stage.
    """
    if stage in ("pack", "bind"):
        with XnnProgram(bundle, options, numerics) as program:
            for method in program.methods:
                facts = _facts
                if stage == "bind":
                    program.run(_zeros(program, method), method)
                    facts = _bound_facts
                sections = [_section(each, facts) for each in program.partitions[method]]
                yield LoweredPlan(stage, method, tuple(sections))
        return
    identities = names.printed(bundle)
    lowering = XnnLowering(numerics)
    for name, model in bundle.methods.items():
        graph = canonical(inferred(model, lowering), lowering)
        yield plan_of(stage, name, graph, identities, numerics)


def plan_of(
    stage: str,
    method: str,
    model: ir.Model,
    identities: Mapping[int, str | Weight] | None = None,
    numerics: Numerics = DEFAULT,
) -> LoweredPlan:
    """Return the plan of a method after a stage.

    Args:
        stage: one of `STAGES` before ``pack``.
        method: the method's name.
        model: canonical: with types and shapes inferred.
        identities: names of the contents of tensors, by their ``id``.
        numerics: which roundings kernels may choose.

    Raises:
        UsageError: there is no such stage.
        BackendError: an operation that cannot be lowered.
    """
    stages = _Stages(model, identities, numerics)
    sections = {
        "canonicalize": stages.canonical,
        "fuse": stages.fused,
        "partition": stages.partitioned,
        "layout": stages.lowered,
        "select": stages.selected,
    }
    if stage not in sections:
        raise UsageError(f"there is no stage {stage!r}; there are {', '.join(STAGES)}")
    return LoweredPlan(stage, method, tuple(sections[stage]()))


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
            _, partition = lower_unit(source, self._numerics)
            partition.verify()
            sections.append(Section("native", partition))
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
        return Section(place, tuple(self._line(entry) for entry in entries))

    def _line(self, entry: Op | Assignment[Op]) -> str:
        """Return an operation of the graph as one line of text.

        ``Conv 17 ("x", "w", none) -> ("y" float32 ["N", 8, 4, 4]) {pads: [1, 1, 1, 1]} node "c"``
        """
        op, reason = (entry, "") if isinstance(entry, Op) else (entry.op, entry.reason)
        inputs = ", ".join("none" if v is None else json.dumps(v.name or "") for v in op.inputs)
        outputs = ", ".join(map(self._output, op.outputs))
        line = f"{op.kind} {op.version} ({inputs}) -> ({outputs})"
        if op.attributes:
            pairs = (f"{name}: {text_of(value)}" for name, value in op.attributes.items())
            line += f" {{{', '.join(pairs)}}}"
        if op.epilogue != Epilogue():
            line += f" epilogue {text_of(op.epilogue)}"
        if op.residual is not None:
            line += f" residual {json.dumps(op.residual.name or '')}"
        for node in op.nodes:
            line += f" node {json.dumps(name_of(node))}"
        return line + (f" reason {json.dumps(reason)}" if reason else "")

    def _output(self, value: ir.Value) -> str:
        dtype = self._facts.dtype(value)
        name = "none" if dtype is None else dtype.name.lower()
        return f"{json.dumps(value.name or '')} {name} {text_of(self._facts.dims(value))}"


def _zeros(program: XnnProgram, method: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs to bind a method with: zeros, with 1 for symbolic dimensions.

    Raises:
        BackendError: an input that is not a tensor of known dtype and rank.
    """
    feeds = {}
    for spec in program.inputs(method):
        if spec.has_default:
            continue
        dtype = ir.DataType.__members__.get((spec.dtype or "").upper())
        if dtype is None or spec.shape is None:
            raise BackendError(
                f"stage 'bind': input {spec.name!r} is no tensor of a known dtype and rank"
            )
        sizes = [size if isinstance(size, int) else 1 for size in spec.shape]
        feeds[spec.name] = np.zeros(sizes, dtype.numpy())
    return feeds


def _section(
    partition: Partition, facts_of: Callable[[PackedStep, Partition], Mapping[str, Any]]
) -> Section:
    """Return a partition with the facts of each operation."""
    facts: dict[LoweredOp, Mapping[str, Any]] = {}
    items: list[LoweredOp | ShapeNode] = []
    for item in partition.items:
        if isinstance(item, PackedStep):
            items.append(item.op)
            facts[item.op] = facts_of(item, partition)
        elif isinstance(item, ShapeNode):
            items.append(item)
    fixed = {name: slot for slot, name in partition.fixed.items()}
    lowered = LoweredPartition(
        tuple(items), partition.inputs, partition.outputs, fixed, partition.places
    )
    lowered.verify()
    return Section("native", lowered, facts)


def _bound_facts(step: PackedStep, partition: Partition) -> Mapping[str, Any]:
    """Return the call of a bound step, and shape, memory and offset of its output."""
    bound = partition.bound
    if bound is None:
        return {}
    placement = bound.placements()[step]
    facts: dict[str, Any] = {"shape": placement.shape, "memory": placement.memory}
    if placement.offset:
        facts["offset"] = placement.offset
    facts["call"] = placement.call or "none"
    if placement.scratch:
        facts["scratch"] = placement.scratch
    return facts


def _facts(step: PackedStep, partition: Partition) -> Mapping[str, Any]:
    """Return the kernel of a packed step, its precision, and the bytes of its packed weights."""
    facts: dict[str, Any] = {"kernel": step.kernel}
    if step.precision:
        facts["precision"] = step.precision
    block = getattr(step.packed, "block", None)
    if block is not None:
        facts["bytes"] = block.size
    return facts
