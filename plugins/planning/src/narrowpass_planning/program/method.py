"""Compiled methods: checks of feeds, and the choice of a graph compiled for their shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.backend import NodePlan
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_planning.branches import Decisions, WrongBranchError, decide, decides, select
from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.prepared import PreparedRun
from narrowpass_planning.plan.step import Times
from narrowpass_planning.program.compiled_graph import CompileContext, CompiledGraph, compile_graph
from narrowpass_planning.program.lowering import Lowering

if TYPE_CHECKING:
    from narrowpass.runtime.meters import Meter

Array = np.ndarray[Any, Any]

_MAX_SPECIALIZATIONS = 8
"""Compiled graphs of one method; beyond them, one graph with its Ifs replaces them."""


@dataclass(frozen=True)
class Interface:
    """What callers of a method know of it.

    Attributes:
        name: the method's.
        checker: of its feeds.
        outputs: names of its outputs.
        types: of the outputs, and of kept values that a run can return, by name.
        known: names of all values of the graph.
        defaults: names of the inputs that have defaults.
        observable: names of the values that `Method.observe` accepts.
    """

    name: str
    checker: FeedChecker
    outputs: tuple[str, ...]
    types: Mapping[str, ir.TypeProtocol | None]
    known: frozenset[str]
    defaults: frozenset[str] = frozenset()
    observable: frozenset[str] = frozenset()


class Method:
    """A compiled method of a bundle. Several threads may run it; they take turns.

    Args:
        interface: what callers know of it.
        graphs: its compiled graphs.
        context: of the program.

    Attributes:
        interface: what callers know of it.
        graphs: its compiled graphs.
        alike: whether the last checked feeds had the types and shapes of those before.
        decided: whether the branches of some Ifs depend on shapes, so that the model is kept.
    """

    def __init__(self, interface: Interface, graphs: Graphs, context: CompileContext) -> None:
        self.interface, self.graphs = interface, graphs
        self.name, self.checker = interface.name, interface.checker
        self.outputs, self.types = interface.outputs, interface.types
        self.known, self.defaults = interface.known, interface.defaults
        self.observable = interface.observable
        self._lowering = context.lowering
        self.workspace = context.workspace
        self.alike = False
        self._checked: list[tuple[Any, ...]] | None = None
        self.decided = graphs.decided

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
            self.alike = True
            return feeds
        self.alike = False
        checked = self.checker.check(feeds)
        # Each string is looked at, and so is what a subclass of arrays may hold.
        fixed = signature is not None and not any(
            kind is not np.ndarray or dtype.hasobject for _, kind, dtype, _ in signature
        )
        self._checked = signature if fixed else None
        return checked

    @property
    def raw(self) -> dict[int, int]:
        """The bytes of constants that are used without packing, by their addresses."""
        return {
            array.ctypes.data: array.nbytes
            for partition in self.partitions
            for array in partition.constants
        }

    @property
    def partitions(self) -> list[Partition]:
        """The native partitions, in order."""
        return self.graphs.last.partitions

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """What runs each node."""
        return self.graphs.last.plans

    @property
    def fresh(self) -> Set[str]:
        """Names of the values that the last run allocated: they alias no others."""
        return self.graphs.last.fresh

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: Pool,
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
            return self.run_within(feeds, wanted, pool, out, times)

    def run_within(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        pool: Pool,
        out: Mapping[str, Array],
        times: Times | None = None,
    ) -> dict[str, Any]:
        """Run the method as `run` does; the caller has entered its workspace."""
        if not self.decided:
            return self.graphs.last.run(feeds, wanted, pool, out, times)
        graph = self.graphs.choose(feeds)
        while True:
            try:
                return graph.run(feeds, wanted, pool, out, times)
            except WrongBranchError as wrong:
                graph = self.graphs.other(wrong, feeds)

    @property
    def alone(self) -> bool:
        """Whether it is one partition and nothing else."""
        return self.graphs.last.alone

    def prepare(self, feeds: Mapping[str, Any], pool: Pool) -> PreparedRun | None:
        """Return a run for further feeds of these types and shapes; see `CompiledGraph.prepare`."""
        return self.graphs.last.prepare(feeds, self.outputs, self.workspace, pool)

    def bind(
        self, feeds: Mapping[str, Any], pool: Pool
    ) -> tuple[BoundPartition, dict[str, Array | str]] | None:
        """Return the partition bound to the shapes of feeds; see `CompiledGraph.bind`."""
        graph = self.graphs.choose(feeds)
        while True:
            try:
                return graph.bind(feeds, self.outputs, pool)
            except WrongBranchError as wrong:
                graph = self.graphs.other(wrong, feeds)

    def observe(self, feeds: Mapping[str, Any], meters: Mapping[str, Meter], pool: Pool) -> None:
        """Run the method on feeds that were checked, and update meters from its values."""
        with self.workspace.entered():
            if self.decided:
                self.run(feeds, (), pool, {})  # chooses the graph before meters are attached
            steps = self.graphs.last.meters
            native = {name: meter for name, meter in meters.items() if name in steps}
            others = [name for name in meters if name not in native]
            scratch = self._lowering.scratch(native.values(), pool)
            for name, meter in native.items():
                steps[name].begin(meter, scratch)
            try:
                values = self.run(feeds, others, pool, {})
            finally:
                for name, meter in native.items():
                    steps[name].end(meter)
        for name in others:
            meters[name].add(values[name], f"value {name!r}")


class Graphs:
    """The one compiled graph of a method.

    Args:
        graph: for all feeds.

    Attributes:
        last: the graph that ran last.
        decided: whether there are branches that depend on shapes.
    """

    decided = False

    def __init__(self, graph: CompiledGraph) -> None:
        self.last = graph

    def choose(self, feeds: Mapping[str, Any]) -> CompiledGraph:
        """Return the graph that ran with feeds of these shapes, or the last one."""
        return self.last

    def other(self, wrong: WrongBranchError, feeds: Mapping[str, Any]) -> CompiledGraph:
        """Return a graph that takes another branch than the last one."""
        raise wrong  # there are no branches


class _Specializations(Graphs):
    """The compiled graphs of a method, one for each choice of branches that depend on shapes."""

    def __init__(
        self,
        name: str,
        model: ir.Model,
        kept: Sequence[str],
        observed: Sequence[str],
        overridden: frozenset[str],
        context: CompileContext,
    ) -> None:
        self._name = name
        self._model = model
        self._kept, self._observed, self._overridden = kept, observed, overridden
        self._context = context
        self._graphs: list[tuple[Decisions, CompiledGraph]] = []
        self._chosen: dict[tuple[Any, ...], CompiledGraph] = {}
        super().__init__(self._compile({}, context))
        self.decided = bool(self._graphs[0][0])
        if not self.decided:
            del self._model  # it is large

    def choose(self, feeds: Mapping[str, Any]) -> CompiledGraph:
        """See `Graphs.choose`."""
        if len(self._graphs) > 1:
            self.last = self._chosen.get(_signature(feeds), self.last)
        return self.last

    def other(self, wrong: WrongBranchError, feeds: Mapping[str, Any]) -> CompiledGraph:
        """See `Graphs.other`."""
        decisions = next(known for known, graph in self._graphs if graph is self.last)
        until = {**decisions}
        for label in [*decisions][[*decisions].index(wrong.label) :]:
            del until[label]
        until[wrong.label] = wrong.taken
        matches = (graph for known, graph in self._graphs if until.items() <= known.items())
        found = next(matches, None)
        if found is None:
            found = self._compile_for(until, feeds)
        if len(self._chosen) > 256:
            self._chosen.clear()
        self._chosen[_signature(feeds)] = found
        self.last = found
        return found

    def _compile_for(self, decisions: Decisions, feeds: Mapping[str, Any]) -> CompiledGraph:
        # Weights are packed for this graph alone: the session of the others is closed.
        context = dataclasses.replace(self._context, session=None, identities={})
        if len(self._graphs) >= _MAX_SPECIALIZATIONS:
            general = self._compile_graph(self._model, context)
            self._graphs = [({}, general)]
            self.decided = False
            return general
        dims = {name: x.shape for name, x in feeds.items() if isinstance(x, np.ndarray)}
        follow = decide(self._model.clone(), decisions, self._overridden, dims)
        return self._compile({**follow, **decisions}, context)

    def _compile(self, guesses: Decisions, context: CompileContext) -> CompiledGraph:
        lowering = context.lowering
        model, decisions = _chosen(self._model, guesses, self._overridden, lowering)
        graph = self._compile_graph(model, context)
        self._graphs.append((decisions, graph))
        return graph

    def _compile_graph(self, model: ir.Model, context: CompileContext) -> CompiledGraph:
        return compile_graph(
            self._name, model, self._kept, self._observed, self._overridden, context
        )


def canonical(model: ir.Model, lowering: Lowering[Any]) -> ir.Model:
    """Return the first specialization of a model, with the taken branch inlined for each If."""
    return _chosen(model, {}, frozenset(), lowering)[0] if decides(model) else model


def _chosen(
    model: ir.Model, guesses: Decisions, overridden: frozenset[str], lowering: Lowering[Any]
) -> tuple[ir.Model, Decisions]:
    clone = model.clone()
    decisions = decide(clone, guesses, overridden)
    select(clone)
    lowering.infer(clone)
    return clone, decisions


def _signature(feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple([x.shape if isinstance(x, np.ndarray) else None for x in feeds.values()])


def compile_method(
    name: str,
    model: ir.Model,
    kept: Sequence[str],
    overridden: frozenset[str],
    context: CompileContext,
    *,
    observe: bool = False,
) -> Method:
    """Compile a method.

    Args:
        name: the method's.
        model: with types and shapes inferred; not changed.
        kept: names of values to keep readable.
        overridden: inputs that are fed in each run although they have defaults. The defaults of
            others are constants.
        context: of the program.
        observe: whether kept values are measured by `Method.observe` alone, and not returned.
    """
    graph = model.graph
    outputs = tuple(value.name or "" for value in graph.outputs)
    known = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    known.update((value.name, value) for node in graph for value in node.outputs)
    kept = [value for value in kept if value in known]
    observable = frozenset((*outputs, *kept)) if observe else frozenset()
    observed = [
        value.name
        for value in known.values()
        if value.name in observable and context.lowering.observes(value)
    ]
    kept = [value for value in kept if value not in observed]
    interface = Interface(
        name,
        FeedChecker.of(graph, name),
        outputs,
        {value: known[value].type for value in (*outputs, *kept)},
        frozenset(name for name in known if name),
        frozenset(value.name or "" for value in graph.inputs if value.name in graph.initializers),
        observable,
    )
    given = name, model, kept, observed, overridden, context
    graphs = _Specializations(*given) if decides(model) else Graphs(compile_graph(*given))
    return Method(interface, graphs, context)


def compile_body(name: str, model: ir.Model, context: CompileContext) -> Method:
    """Compile the body of a control flow operator."""
    return compile_method(name, model, (), frozenset(), context)
