"""A compiled graph: partitions and host units in order, and their execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass_planning.graph.constants import derive_constants
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host.bodies import Compiled
from narrowpass_planning.host.control_flow import ControlFlow, can_run
from narrowpass_planning.host.nodes import HostNode, HostUnit
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.partitioner import Target, Unit, assign, schedule
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.prepared import PreparedRun
from narrowpass_planning.plan.shapes import Shapes
from narrowpass_planning.plan.step import Times
from narrowpass_planning.program.explain import plans_of_units, plans_of_weights
from narrowpass_planning.program.lowering import Lowering, Source, StepMeter
from narrowpass_planning.program.shape_nodes import shape_node
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.operators import CAUSAL_MASK, DOMAIN
from narrowpass_planning.weights.session import Session
from narrowpass_planning.weights.weight import Weight

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CompileContext:
    """The lowering, workspace and weights cache with which a program compiles a method.

    Attributes:
        lowering: of the backend.
        workspace: memory of intermediate values.
        session: of the weights cache; None to pack for this method alone.
        identities: names of the contents of tensors, by their ``id``, or weights of outer scopes;
            see `Weight.identity`.
        compile: compiles the body of a control flow operator.
    """

    lowering: Lowering[Any]
    workspace: Workspace
    compile: Callable[[str, ir.Model, CompileContext], Compiled]
    session: Session | None = None
    identities: Mapping[int, str | Weight] = field(default_factory=dict)


class CompiledGraph:
    """A compiled graph, for one choice of the branches that depend on shapes.

    Args:
        units: partitions and host units, in order.
        constants: that a run reads without packing, by name.
        plans: what runs each node.
        meters: steps that measure values in place, by the value's name.

    Attributes:
        units: partitions and host units, in order.
        constants: that a run reads without packing, by name.
        plans: what runs each node.
        meters: steps that measure values in place, by the value's name.
        alone: whether it is one partition and nothing else.
    """

    def __init__(
        self,
        units: Sequence[Partition | HostUnit],
        constants: Mapping[str, Weight],
        plans: Sequence[NodePlan],
        meters: Mapping[str, StepMeter] = MappingProxyType({}),
    ) -> None:
        self.units, self.constants = tuple(units), constants
        self.plans, self.meters = tuple(plans), meters
        self._constants = _Constants(constants)
        self._fresh = frozenset(output for unit in self.partitions for output in unit.outputs)
        self._flow = [
            item
            for unit in self.units
            if isinstance(unit, HostUnit)
            for item in unit.items
            if isinstance(item, ControlFlow)
        ]
        self._shapes = Shapes(self._constants)
        self.alone = len(self.partitions) == 1 and all(
            isinstance(unit, Partition) or not unit.computes for unit in self.units
        )

    @property
    def fresh(self) -> Set[str]:
        """Names of the values that the last run allocated: they alias no others."""
        if not self._flow:
            return self._fresh
        return self._fresh.union(*(item.fresh for item in self._flow))

    @property
    def partitions(self) -> list[Partition]:
        """The native partitions, in order."""
        return [unit for unit in self.units if isinstance(unit, Partition)]

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> dict[str, Any]:
        """Run it; see `Method.run`. Who calls has entered the workspace.

        Raises:
            WrongBranchError: it was compiled for another branch.
        """
        shapes = self._shapes
        known = shapes.shapes
        values: dict[str, Any] = dict(feeds)
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                known[name] = value.shape
        for unit in self.units:
            unit.run(values, shapes, pool, out, times)
        return {name: values[name] if name in values else self._read(name) for name in wanted}

    def prepare(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        workspace: Workspace,
        pool: Pool,
    ) -> PreparedRun | None:
        """Return a run for further feeds of the types and shapes of these, which have just run.

        Returns:
            None where more than one partition runs, or outputs are copies of feeds.
        """
        if not self.alone:
            return None
        (partition,) = self.partitions
        bound = partition.bound
        copied = None if bound is None else bound.copied()
        others = [name for name in wanted if name not in partition.outputs]
        if bound is None or copied is None or any(name in feeds for name in others):
            return None
        copied += [(name, self._read(name)) for name in others]  # they follow from shapes
        return PreparedRun(partition, bound, copied, wanted, feeds, workspace, pool)

    def bind(
        self, feeds: Mapping[str, Any], wanted: Sequence[str], pool: Pool
    ) -> tuple[BoundPartition, dict[str, Array | str]] | None:
        """Return the partition bound to the shapes of feeds, where there is nothing else to run.

        Returns:
            The partition, and the outputs that it does not compute: constants, or names of inputs.
            None where more runs.

        Raises:
            WrongBranchError: the graph was compiled for another branch.
        """
        if not self.alone:
            return None
        shapes = self._shapes
        for name, value in feeds.items():
            shapes.shapes[name] = value.shape
        computed: set[str] = set()
        bound = None
        for unit in self.units:
            if isinstance(unit, Partition):
                bound = unit.bind(feeds, shapes, pool)
                computed = set(unit.outputs)
            else:
                unit.run({}, shapes, pool, {}, None)
        if bound is None:
            return None
        names = [name for name in wanted if name not in computed]
        return bound, {name: name if name in feeds else self._read(name) for name in names}

    def _read(self, name: str) -> Any:
        found = self._shapes.values.get(name)
        return self._constants[name] if found is None else found


def compile_graph(
    name: str,
    model: ir.Model,
    kept: Sequence[str],
    observed: Sequence[str],
    overridden: frozenset[str],
    context: CompileContext,
) -> CompiledGraph:
    """Compile a graph.

    Args:
        name: the method's.
        model: with types and shapes inferred; not changed, and not needed afterwards.
        kept: names of values to keep readable.
        observed: names of values that meters read in place.
        overridden: inputs that are fed in each run although they have defaults.
        context: of the program.
    """
    graph, lowering = model.graph, context.lowering
    identities = None if context.session is None else context.identities
    facts = Facts(graph, kept, overridden, identities, observed)
    version = _version(model)
    derive_constants(graph, facts, version)
    assigned = assign(lowering.operations(graph, facts, model, version), facts, lowering.reason)
    units = schedule(assigned)
    compiled = _compile_units(name, units, facts, model, context)
    needed = {name for unit in compiled for name in unit.reads} | facts.needed
    known = facts.constants()
    return CompiledGraph(
        compiled,
        {name: facts.stored(known[name]) for name in needed if name in known},
        (
            *plans_of_units(name, units, compiled, lowering),
            *plans_of_weights(name, assigned, lowering),
        ),
        {
            value: meter
            for unit in compiled
            if isinstance(unit, Partition)
            for value, meter in lowering.meters(unit).items()
        },
    )


def _compile_units(
    name: str, units: Sequence[Unit[Any]], facts: Facts, model: ir.Model, context: CompileContext
) -> list[Partition | HostUnit]:
    """Compile the units of a method in order: partitions are lowered, host units are not."""
    compiled: list[Partition | HostUnit] = []
    number = 0
    for unit, given in zip(units, outputs_of(units, facts), strict=True):
        if is_native(unit):
            items = [
                shape_node(entry.op, facts, model) if entry.target is Target.SHAPES else entry.op
                for entry in unit.ops
            ]
            source = Source(number, items, given, facts, context.session, context.workspace)
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
        nodes = [
            shape_node(entry.op, facts, model)
            if entry.target is Target.SHAPES
            else _host_node(entry.op, facts, model, name, context)
            for entry in unit.ops
        ]
        compiled.append(HostUnit(nodes, tuple(value.name or "" for value in given)))
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


class _Constants(Mapping[str, Array]):
    """Constants by name, computed on the first access."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self._weights[name].view()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _version(model: ir.Model) -> Callable[[ir.Node], int]:
    def version(node: ir.Node) -> int:
        return node.version or model.opset_imports.get(node.domain, 1)

    return version
