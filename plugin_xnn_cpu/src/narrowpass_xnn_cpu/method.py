"""A method compiled: units in order, and running them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.feeds import FeedChecker
from narrowpass_xnn_cpu.explain import plans_of_units, plans_of_weights
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
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.int8.raised import raise_images
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.operations import operations
from narrowpass_xnn_cpu.lower.steps import Observed
from narrowpass_xnn_cpu.native.meter import scratch_for
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.plan.partition import Partition, ShapeNode, Shapes
from narrowpass_xnn_cpu.plan.step import Times
from narrowpass_xnn_cpu.plan.workspace import Workspace
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

if TYPE_CHECKING:
    from narrowpass.meters import Meter

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Premises:
    """Where a method is compiled to: what it has from its program.

    Attributes:
        workspace: the memory that it computes in.
        session: of the weights cache; None to pack for this method alone.
        identities: names of the contents of tensors, by their ``id``, or what is known of them
            outside of a subgraph; see `Weight.identity`.
        winograd: see `CompileOptions.winograd`.
    """

    workspace: Workspace
    session: Session | None = None
    identities: Mapping[int, str | Weight] = field(default_factory=dict)
    winograd: bool = True


class Method:
    """A compiled method. Several threads may run it; they take turns.

    Args:
        name: the method's.
        model: with types and shapes inferred; not changed, and not needed afterwards.
        kept: names of values to keep readable.
        overridden: inputs that are fed in each run although they have defaults. The defaults of
            others are constants.
        premises: what it has from its program.
        observe: whether kept values are only looked at, by `observe`.

    Attributes:
        defaults: names of the inputs that have defaults.
        fresh: names of the values that are made anew in each run.
        types: of the outputs, and of the values that a run can give beside them, by name.
        observable: names of the values that `observe` can be asked for.
    """

    def __init__(
        self,
        name: str,
        model: ir.Model,
        kept: Sequence[str],
        overridden: frozenset[str] = frozenset(),
        premises: Premises | None = None,
        *,
        observe: bool = False,
    ) -> None:
        premises = premises or Premises(Workspace())
        graph = model.graph
        self.name = name
        self.checker = FeedChecker.of(graph, name)
        self.outputs = tuple(value.name or "" for value in graph.outputs)
        self.defaults = frozenset(
            value.name or "" for value in graph.inputs if value.name in graph.initializers
        )
        known = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
        known.update((value.name, value) for node in graph for value in node.outputs)
        self.known = frozenset(name for name in known if name)
        kept = [value for value in kept if value in known]
        self.observable = frozenset((*self.outputs, *kept)) if observe else frozenset()
        observed = [v.name for v in known.values() if v.name in self.observable and _computed(v)]
        kept = [value for value in kept if value not in observed]
        self.types = {value: known[value].type for value in (*self.outputs, *kept)}
        identities = None if premises.session is None else premises.identities
        facts = Facts(graph, kept, overridden, identities, observed)
        derive_constants(graph, facts)
        assigned = assign(operations(graph, facts, model, _version(model)), facts)
        units = schedule(assigned)
        self._units = _compile(name, units, facts, model, premises)
        needed = {name for unit in self._units for name in unit.reads}
        self._meters = {
            step.value: step.meter
            for partition in self.partitions
            for step in partition.steps
            if isinstance(step, Observed)
        }
        self._constants = _Constants(facts, needed | facts.needed)
        self.plans = (*plans_of_units(name, units, self._units), *plans_of_weights(name, assigned))
        self.workspace = premises.workspace
        self._checked: list[tuple[Any, ...]] | None = None
        self.fresh = frozenset(
            output for unit in self._units if isinstance(unit, Partition) for output in unit.outputs
        )
        self._shapes = Shapes(self._constants)

    def check(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check feeds, unless they are of the types and shapes of the last ones.

        Returns:
            The feeds; see `FeedChecker.check`.

        Raises:
            DataError: see `FeedChecker.check`.
        """
        try:
            signature = [(name, type(x), x.dtype, x.shape) for name, x in feeds.items()]
        except AttributeError:
            signature = None  # something else than arrays: sequences, or a mistake
        if signature is not None and signature == self._checked:
            return feeds
        checked = self.checker.check(feeds)
        # Each string is looked at, and so is what a subclass of arrays may hold.
        fixed = signature is not None and not any(
            kind is not np.ndarray or dtype.hasobject for _, kind, dtype, _ in signature
        )
        self._checked = signature if fixed else None
        return checked

    @property
    def raw(self) -> dict[int, int]:
        """The bytes of constants that are used as they are, by where they lie."""
        return {
            array.ctypes.data: array.nbytes
            for partition in self.partitions
            for array in partition.constants
        }

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
        """Run the method on feeds that were checked.

        Args:
            feeds: by input name.
            wanted: names of outputs and kept values.
            pool: the threads.
            out: dense arrays of the outputs' types, which may be written to.
            times: takes the seconds of each step and host node, where given.

        Returns:
            The values. They may be views of feeds or weights; those that were computed in an
            array of `out` are that array.
        """
        with self.workspace.entered():
            shapes = self._shapes
            values: dict[str, Any] = dict(feeds)
            for name, value in values.items():
                if isinstance(value, np.ndarray):
                    shapes.shapes[name] = value.shape
            for unit in self._units:
                if isinstance(unit, Partition):
                    values.update(unit.run(values, shapes, pool, out, times))
                else:
                    unit.run(values, shapes, pool, times)
            return {name: self._read(name, values) for name in wanted}

    def observe(
        self, feeds: Mapping[str, Any], meters: Mapping[str, Meter], pool: ThreadPool
    ) -> None:
        """Run the method on feeds that were checked, and let meters take in its values."""
        native = {name: meter for name, meter in meters.items() if name in self._meters}
        others = [name for name in meters if name not in native]
        scratch = scratch_for(native.values(), pool)
        with self.workspace.entered():
            for name, meter in native.items():
                self._meters[name].begin(meter, scratch)
            try:
                values = self.run(feeds, others, pool, {})
            finally:
                for name, meter in native.items():
                    self._meters[name].end(meter)
        for name in others:
            meters[name].add(values[name], f"value {name!r}")

    def _read(self, name: str, values: Mapping[str, Any]) -> Any:
        if name in values:
            return values[name]
        found = self._shapes.values.get(name)
        return self._constants[name] if found is None else found


class _Constants(Mapping[str, Array]):
    """Constants by name, made when asked for; only those that running needs."""

    def __init__(self, facts: Facts, names: Iterable[str]) -> None:
        known = facts.constants()
        self._weights = {name: facts.stored(known[name]) for name in names if name in known}

    def __getitem__(self, name: str) -> Array:
        return self._weights[name].view()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _computed(value: ir.Value) -> bool:
    """Tell whether a value lies somewhere as float32 elements while the method runs."""
    return value.producer() is not None and value.dtype == ir.DataType.FLOAT


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

    def compile_(inner: ir.Model, identities: Mapping[int, Weight]) -> Method:
        families.expand_checked(inner)
        known = {**premises.identities, **identities}
        within = dataclasses.replace(premises, identities=known)
        return Method(method, inner, (), premises=within)

    return ControlFlow(op, facts, model, compile_)


def _shape_node(op: Op, facts: Facts, model: ir.Model) -> ShapeNode:
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
