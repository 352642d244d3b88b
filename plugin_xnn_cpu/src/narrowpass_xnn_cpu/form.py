"""A graph compiled: units in order, and running them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_xnn_cpu.explain import plans_of_units, plans_of_weights
from narrowpass_xnn_cpu.host.bodies import Compiled
from narrowpass_xnn_cpu.host.control_flow import ControlFlow, can_run
from narrowpass_xnn_cpu.host.nodes import HostNode, HostUnit
from narrowpass_xnn_cpu.lower import families
from narrowpass_xnn_cpu.lower.assign import (
    Unit,
    Where,
    assign,
    derive_constants,
    reads,
    schedule,
)
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.deciding import WrongBranchError
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.int8.raised import raise_images
from narrowpass_xnn_cpu.lower.op import GUARD, Op
from narrowpass_xnn_cpu.lower.operations import operations
from narrowpass_xnn_cpu.lower.steps import Observed
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.plan.bound import Bound
from narrowpass_xnn_cpu.plan.partition import Partition, ShapeNode, Shapes
from narrowpass_xnn_cpu.plan.prepared import Prepared
from narrowpass_xnn_cpu.plan.step import Times
from narrowpass_xnn_cpu.plan.workspace import Workspace
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Premises:
    """Where a method is compiled to: what it has from its program.

    Attributes:
        workspace: the memory that it computes in.
        session: of the weights cache; None to pack for this method alone.
        identities: names of the contents of tensors, by their ``id``, or what is known of them
            outside of a subgraph; see `Weight.identity`.
        winograd: see `XnnCpuBackend.winograd`.
        compile: compiles the body of a control flow operator.
    """

    workspace: Workspace
    compile: Callable[[str, ir.Model, Premises], Compiled]
    session: Session | None = None
    identities: Mapping[int, str | Weight] = field(default_factory=dict)
    winograd: bool = True


class Form:
    """A graph compiled, with a branch in the place of each If that follows from shapes.

    Args:
        name: the method's.
        model: with types and shapes inferred; not changed, and not needed afterwards.
        kept: names of values to keep readable.
        observed: names of values that meters look at where they lie.
        overridden: inputs that are fed in each run although they have defaults.
        premises: what it has from its program.

    Attributes:
        plans: where nodes run.
        meters: those that look at values where they lie, by name.
        alone: whether one partition runs and nothing else.
    """

    def __init__(
        self,
        name: str,
        model: ir.Model,
        kept: Sequence[str],
        observed: Sequence[str],
        overridden: frozenset[str],
        premises: Premises,
    ) -> None:
        graph = model.graph
        identities = None if premises.session is None else premises.identities
        facts = Facts(graph, kept, overridden, identities, observed)
        version = _version(model)
        derive_constants(graph, facts, version)
        assigned = assign(operations(graph, facts, model, version), facts)
        units = schedule(assigned)
        self._units = _compile(name, units, facts, model, premises)
        needed = {name for unit in self._units for name in unit.reads}
        self.meters = {
            step.value: step.meter
            for partition in self.partitions
            for step in partition.steps
            if isinstance(step, Observed)
        }
        self._constants = _Constants(facts, needed | facts.needed)
        self.plans = (*plans_of_units(name, units, self._units), *plans_of_weights(name, assigned))
        self._fresh = frozenset(
            output for unit in self._units if isinstance(unit, Partition) for output in unit.outputs
        )
        self._flow = [
            item
            for unit in self._units
            if isinstance(unit, HostUnit)
            for item in unit.items
            if isinstance(item, ControlFlow)
        ]
        self._shapes = Shapes(self._constants)
        self.alone = len(self.partitions) == 1 and all(
            isinstance(unit, Partition) or not unit.computes for unit in self._units
        )

    @property
    def fresh(self) -> Set[str]:
        """Names of the values that the last run has made anew."""
        if not self._flow:
            return self._fresh
        return self._fresh.union(*(item.fresh for item in self._flow))

    @property
    def partitions(self) -> list[Partition]:
        """The native partitions, in order."""
        return [unit for unit in self._units if isinstance(unit, Partition)]

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: ThreadPool,
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
        for unit in self._units:
            unit.run(values, shapes, pool, out, times)
        return {name: values[name] if name in values else self._read(name) for name in wanted}

    def prepare(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        workspace: Workspace,
        pool: ThreadPool,
    ) -> Prepared | None:
        """Give what runs for other feeds of the types and shapes of these, which have just run.

        Returns:
            None where more than one partition runs, or results are copies of other values.
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
        return Prepared(partition, bound, copied, wanted, feeds, workspace, pool)

    def bind(
        self, feeds: Mapping[str, Any], wanted: Sequence[str], pool: ThreadPool
    ) -> tuple[Bound, dict[str, Array | str]] | None:
        """Give what runs for the shapes of feeds, where that is one partition and nothing else.

        Returns:
            The partition, and of those values that it does not make what they are, or which input;
            None where more runs.

        Raises:
            WrongBranchError: the graph was compiled for another branch.
        """
        if not self.alone:
            return None
        shapes = self._shapes
        for name, value in feeds.items():
            shapes.shapes[name] = value.shape
        made: set[str] = set()
        bound = None
        for unit in self._units:
            if isinstance(unit, Partition):
                bound = unit.bind(feeds, shapes, pool)
                made = set(unit.outputs)
            else:
                unit.run({}, shapes, pool, {}, None)
        if bound is None:
            return None
        names = [name for name in wanted if name not in made]
        return bound, {name: name if name in feeds else self._read(name) for name in names}

    def _read(self, name: str) -> Any:
        found = self._shapes.values.get(name)
        return self._constants[name] if found is None else found


class _Constants(Mapping[str, Array]):
    """Constants by name, made when first asked for; only those that running needs."""

    def __init__(self, facts: Facts, names: Iterable[str]) -> None:
        known = facts.constants()
        self._weights = {name: facts.stored(known[name]) for name in names if name in known}
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


def _compile(
    name: str, units: Sequence[Unit], facts: Facts, model: ir.Model, premises: Premises
) -> list[Partition | HostUnit]:
    owner = {id(e.op): i for i, unit in enumerate(units) for e in unit.ops}
    read_by: dict[str, set[int]] = {}
    for unit in units:
        for entry in unit.ops:
            if entry.op.kind in ("Shape", "Size") and entry.where is Where.SHAPES:
                continue
            for value in reads(entry.op):
                read_by.setdefault(value.name or "", set()).add(owner[id(entry.op)])
    compiled: list[Partition | HostUnit] = []
    number = 0
    for index, unit in enumerate(units):
        native = any(entry.where is Where.NATIVE for entry in unit.ops)
        wanted = facts.given if native else facts.needed
        given = [
            value
            for entry in unit.ops
            for value in entry.op.outputs
            if value.name
            and value.name not in facts.fixed
            and (value.name in wanted or read_by.get(value.name, set()) - {index})
        ]
        if native:
            builder = Builder(facts, premises.session, winograd=premises.winograd)
            for entry in unit.ops:
                if entry.where is Where.SHAPES:
                    builder.add_shape_node(_shape_node(entry.op, facts, model))
                    continue
                families.lower(entry.op, builder)
                builder.observe(entry.op.outputs)
            partition = builder.finish(number, given, premises.workspace)
            raise_images(partition.items, set(partition.outputs.values()))
            compiled.append(partition)
            number += 1
            continue
        items = [
            _shape_node(entry.op, facts, model)
            if entry.where is Where.SHAPES
            else _host_node(entry.op, facts, model, name, premises)
            for entry in unit.ops
        ]
        compiled.append(HostUnit(items, tuple(value.name or "" for value in given)))
    return compiled


def _host_node(
    op: Op, facts: Facts, model: ir.Model, method: str, premises: Premises
) -> HostNode | ControlFlow:
    if not can_run(op):
        return HostNode(op, facts, model)

    def compile_(inner: ir.Model, identities: Mapping[int, Weight]) -> Compiled:
        families.expand_checked(inner)
        known = {**premises.identities, **identities}
        within = dataclasses.replace(premises, identities=known)
        return premises.compile(method, inner, within)

    return ControlFlow(op, facts, model, compile_)


def _shape_node(op: Op, facts: Facts, model: ir.Model) -> ShapeNode:
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
    """Give what ends a run where an If was decided otherwise."""
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
