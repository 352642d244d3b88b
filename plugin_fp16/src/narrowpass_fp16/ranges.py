"""The largest element that each value has on data, in float32.

A model runs on any backend with additional outputs: each value of a branch, loop or function is
reduced to its largest magnitude there, which becomes an output of the subgraph and of the node
around it, out to the main graph. Where a model has operators that nothing here knows, the part that
can be run without them is.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass import Accept, Samples
from narrowpass.runtime.oracle import oracle
from narrowpass_analysis.values import check_elements, check_numbers, run_on_samples, split_groups
from narrowpass_analysis.verification import judging_backends
from narrowpass_fp16.schemas import FLOAT, is_float
from narrowpass_ir.subgraphs import model_graphs, model_nodes, nested_graphs, subgraphs

if TYPE_CHECKING:
    from narrowpass import Context
    from narrowpass.runtime.backend import Feeds


@dataclass(frozen=True)
class Ranges:
    """What was measured, by the numbers that `numbered` assigns to values; it holds for clones too.

    Attributes:
        largest: the largest finite magnitude of values that were computed.
        excused: why others could not be measured, where that is no reason to keep them wide.
    """

    largest: Mapping[int, float] = field(default_factory=dict)
    excused: Mapping[int, str] = field(default_factory=dict)

    def of(self, model: ir.Model) -> Measured:
        """Return them by value: of the model that was observed, or of a clone."""
        numbers = numbered(model)
        known = self.largest.keys() | self.excused.keys()
        return Measured(
            {value: self.largest[n] for value, n in numbers.items() if n in self.largest},
            {value: self.excused[n] for value, n in numbers.items() if n in self.excused},
            {value for value, n in numbers.items() if self.largest and n not in known},
        )


@dataclass(frozen=True)
class Measured:
    """What was measured, by value; see `Ranges`.

    Attributes:
        unseen: computed values of which nothing can be said, though there is data.
    """

    largest: Mapping[ir.Value, float]
    excused: Mapping[ir.Value, str]
    unseen: Set[ir.Value]


def numbered(model: ir.Model) -> dict[ir.Value, int]:
    """Number the values of a model, those of subgraphs and functions included."""
    found: dict[ir.Value, int] = {}
    values = list(model.graph.inputs)
    for node in model_nodes(model):
        values.extend(node.outputs)
        for graph in subgraphs(node):
            values.extend(graph.inputs)
    for function in model.functions.values():
        values.extend(function.inputs)
    for value in values:
        found.setdefault(value, len(found))
    return found


def observe(
    model: ir.Model, samples: Samples, ctx: Context, red: Collection[ir.Node] = ()
) -> Ranges:
    """Run a model on samples, and return the largest finite magnitude of each float32 value.

    Values behind a node that nothing can run are left out, and so are those within a branch or a
    loop that no sample enters.

    Args:
        model: as it was before anything is narrow, with types; not changed.
        samples: gone through once for every `narrowpass_analysis.values.AT_ONCE` values.
        ctx: has the target, which runs it; the reference evaluator if there is none.
        red: nodes that stay wide. Values of the main graph that only these read and write are not
            measured: a pass that narrows few nodes at a time keeps few values.

    Raises:
        DataError: an input is NaN on a sample, or nothing is computed of it; the message names
            both.
        BackendError: the model cannot be run.
    """
    spared = _spared(model, red)
    clone = model.clone()
    numbers = numbered(clone)
    excused = {numbers[value]: reason for value, reason in cut_off(clone, ctx).items()}
    outer = {
        value.name: numbers[value]
        for node in clone.graph
        for value in node.outputs
        if value.name and is_float(value)
    }
    # One at least: inputs are measured by the way.
    touched = {name: number for name, number in outer.items() if number not in spared}
    outer = touched or dict(islice(outer.items(), 1))
    excused |= dict.fromkeys(spared, "only nodes that stay wide touch it")
    probes = Probes(clone, numbers)
    asked = outer | probes.scalars
    if not clone.graph.outputs:  # all are behind what nothing can run
        last = next((v for node in reversed(clone.graph) for v in node.outputs if v.name), None)
        clone.graph.outputs.extend([] if last is None else [last])
    inputs = {value.name: numbers[value] for value in clone.graph.inputs}
    backend = judging_backends(ctx.target)[-1]
    largest: dict[int, float] = {}
    for group in split_groups(list(asked)):
        for at, feeds, values in run_on_samples(clone, group, _checked(samples), backend):
            check_elements(feeds, values, f"sample {at} of {samples.source}")
            found = [(asked[name], array) for name, array in values.items()]
            found += [(inputs[name], array) for name, array in feeds.items() if _is_wide(array)]
            for number, array in found:
                size = _largest(array)
                if size != NOT_RUN:
                    largest[number] = max(largest.get(number, 0.0), size)
            del values, found, array  # before the next ones are computed
    for number in {*probes.scalars.values()} - largest.keys():
        excused[number] = "no sample enters what it is in"
    for number in {*inputs.values()} - largest.keys():
        excused[number] = "no sample feeds it"
    return Ranges(largest, excused)


def _spared(model: ir.Model, red: Collection[ir.Node]) -> set[int]:
    """Return the numbers of values of the main graph that only red nodes read and write.

    None of what a subgraph or a call reads: it has nodes of its own.
    """
    numbers = numbered(model)
    around = {node for node in model_nodes(model) if node not in red or any(subgraphs(node))}
    touched = {value for node in around for value in (*node.inputs, *node.outputs)}
    return {
        numbers[value]
        for node in model.graph
        for value in node.outputs
        if node in red and value not in touched
    }


def _is_wide(array: object) -> bool:
    return np.asarray(array).dtype == np.float32


def _checked(samples: Samples) -> Samples:
    """Return samples that are refused, before anything runs on them, where an input is NaN."""

    def opened() -> Iterator[Feeds]:
        for number, feeds in enumerate(samples, start=1):
            check_numbers(feeds, f"sample {number} of {samples.source}")
            yield feeds

    return Samples(samples.source, opened)


def _largest(array: object) -> float:
    """Return the largest finite magnitude, or what a probe says.

    Infinity is what a mask adds, and NaN what some models put where nothing is known; both stay
    what they are in the narrow type.
    """
    if not isinstance(array, np.ndarray) or not array.size:
        return 0.0
    if array.size == 1 and array.item() == NOT_RUN:
        return NOT_RUN
    size = max(float(array.max()), -float(array.min()))  # without an array of magnitudes
    if np.isfinite(size):
        return size
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


NOT_RUN = -1.0
"""The largest magnitude of a value that was never computed, or had no elements."""

_FIRST = 9
"""The operator set from which all that probes are built of is there, and Scan has no batches."""

Found = list[tuple[int, ir.Value]]
"""Numbers of values, and scalars that hold their largest magnitude."""


class Probes:
    """Adds probes to a model, in place.

    Args:
        model: with types as far as they are known; its outputs stay, and get no others.
        numbers: of the values that can be asked for.

    Attributes:
        scalars: names of values of the main graph that hold a largest magnitude (a scalar, or
            `NOT_RUN`), and the number of the value each is about.
    """

    def __init__(self, model: ir.Model, numbers: Mapping[ir.Value, int]) -> None:
        self._model, self._numbers = model, numbers
        self._taken = {
            value.name
            for graph in model_graphs(model)
            for value in (
                *graph.inputs,
                *graph.initializers.values(),
                *(output for node in graph for output in node.outputs),
            )
        }
        self._functions: dict[ir.OperatorIdentifier, list[int]] = {}
        self.scalars: dict[str, int] = {}
        if model.opset_imports.get("", 1) < _FIRST:
            return
        for node in list(model.graph):
            self.scalars.update((value.name or "", number) for number, value in self._through(node))

    def _within(self, graph: ir.Graph) -> Found:
        """Return the values of a subgraph, and of all within it, as scalars in it."""
        found: Found = []
        for value in graph.inputs:
            if is_float(value) and value in self._numbers:
                found.append((self._numbers[value], self._largest(value, graph, None)))
        for node in list(graph):
            found += self._through(node)
            for value in node.outputs:
                if is_float(value) and value in self._numbers:
                    found.append((self._numbers[value], self._largest(value, graph, node)))
        return found

    def _through(self, node: ir.Node) -> Found:
        """Return the values within a node's subgraphs, or function, as scalars behind the node."""
        function = self._model.functions.get(node.op_identifier())
        if function is not None:
            return self._through_call(node, function)
        bodies = list(subgraphs(node))
        if node.domain or not bodies:
            return []
        if node.op_type == "If":
            return self._through_if(node, bodies)
        if node.op_type in ("Loop", "Scan"):
            return self._through_loop(node, bodies[0])
        return []

    def _through_call(self, node: ir.Node, function: ir.Function) -> Found:
        key = function.identifier()
        if key not in self._functions:
            self._functions[key] = []  # of one that calls itself nothing is seen
            if function.opset_imports.get("", 0) >= _FIRST:
                found = self._within(function.graph)
                function.outputs.extend(value for _, value in found)
                self._functions[key] = [number for number, _ in found]
        return list(zip(self._functions[key], self._grow(node, self._functions[key]), strict=True))

    def _through_if(self, node: ir.Node, branches: Sequence[ir.Graph]) -> Found:
        found = [self._within(branch) for branch in branches]
        for index, branch in enumerate(branches):
            for other, items in enumerate(found):
                for _, value in items:
                    own = other == index
                    nothing = value if own else _scalar(self._constant(NOT_RUN, branch, None))
                    branch.outputs.append(nothing)
        numbers = [number for items in found for number, _ in items]
        return list(zip(numbers, self._grow(node, numbers), strict=True))

    def _through_loop(self, node: ir.Node, body: ir.Graph) -> Found:
        carried = 1 if node.op_type == "Loop" else 0
        if len(node.outputs) != len(body.outputs) - carried:
            return []
        found = self._within(body)
        body.outputs.extend(value for _, value in found)
        for name in ("scan_output_axes", "scan_output_directions"):
            given = node.attributes.get_ints(name, None)
            if given is not None:
                node.attributes[name] = ir.AttrInt64s(name, [*given, *[0] * len(found)])
        numbers = [number for number, _ in found]
        rounds = self._grow(node, numbers)
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            raise TypeError(f"{node.name!r} is in no graph")
        return [
            (number, self._largest(value, graph, node))
            for number, value in zip(numbers, rounds, strict=True)
        ]

    def _grow(self, node: ir.Node, numbers: Sequence[int]) -> list[ir.Value]:
        """Append outputs to a node, one for each number."""
        before = len(node.outputs)
        node.resize_outputs(before + len(numbers))
        added = list(node.outputs[before:])
        for value in added:
            value.name, value.type = self._unique(), ir.TensorType(FLOAT)
        return added

    def _largest(self, value: ir.Value, graph: ir.Graph, after: ir.Node | None) -> ir.Value:
        """Reduce a value to its largest finite magnitude, right after the node that computes it."""
        limit = self._constant(float("inf"), graph, after)
        zero = self._constant(0.0, graph, limit.producer())
        none = self._constant(NOT_RUN, graph, zero.producer(), dims=1)
        flat = self._constant(np.array([-1]), graph, none.producer())
        last = flat.producer()

        def add(op_type: str, inputs: Sequence[ir.Value], **numbers: int) -> ir.Value:
            nonlocal last
            last = self._node(op_type, inputs, graph, last, numbers)
            return last.outputs[0]

        size = add("Abs", [value])
        finite = add("Where", [add("Less", [size, limit]), size, zero])  # NaN is not less
        every = add("Concat", [add("Reshape", [finite, flat]), none], axis=0)
        return _scalar(add("ReduceMax", [every], keepdims=0))

    def _constant(
        self, number: float | np.ndarray, graph: ir.Graph, after: ir.Node | None, dims: int = 0
    ) -> ir.Value:
        array = number if isinstance(number, np.ndarray) else np.full([1] * dims, number, "f4")
        node = self._node("Constant", [], graph, after, {"value": ir.tensor(array)})
        return node.outputs[0]

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        graph: ir.Graph,
        after: ir.Node | None,
        attributes: Mapping[str, int | ir.TensorProtocol],
    ) -> ir.Node:
        """Add a node behind another, or as the first of a graph."""
        added = ir.Value(name=self._unique())
        node = ir.node(op_type, inputs, attributes=attributes, outputs=[added], name=added.name)
        first = next(iter(graph), None)
        if after is not None:
            graph.insert_after(after, node)
        elif first is not None:
            graph.insert_before(first, node)
        else:
            graph.append(node)
        return node

    def _unique(self) -> str:
        number = len(self._taken)
        while f"probe.{number}" in self._taken:
            number += 1
        self._taken.add(f"probe.{number}")
        return f"probe.{number}"


def _scalar(value: ir.Value) -> ir.Value:
    value.type, value.shape = ir.TensorType(FLOAT), ir.Shape([])
    return value


def cut_off(model: ir.Model, ctx: Context) -> dict[ir.Value, str]:
    """Remove the nodes that cannot be run, and all that depend on them.

    Args:
        model: changed in place; outputs that cannot be computed go, inputs stay.
        ctx: has the target.

    Returns:
        The values that were removed, each with the reason.
    """
    unknown = {node: _label(node) for node in model_nodes(model) if not _runs(model, node, ctx)}
    if not unknown:
        return {}
    calls: dict[ir.OperatorIdentifier, str] = {}
    for _ in model.functions:  # functions call others
        for key, function in model.functions.items():
            found = _first_unknown(function.graph, unknown, calls)
            if found:
                calls[key] = found
    lost: dict[ir.Value, str] = {}
    removed: list[ir.Node] = []
    for node in model.graph:
        reason = unknown.get(node) or calls.get(node.op_identifier(), "")
        for graph in subgraphs(node):
            reason = reason or _first_unknown(graph, unknown, calls)
        reason = reason or next((lost[value] for value in _read(node) if value in lost), "")
        if reason:
            removed.append(node)
            lost.update((value, reason) for value in _produced(node))
    for key, reason in calls.items():
        function = model.functions.pop(key)
        results = [value for node in function.all_nodes() for value in node.outputs]
        lost.update((value, reason) for value in (*function.inputs, *results))
    kept = [value for value in model.graph.outputs if value not in lost]
    model.graph.outputs.clear()
    model.graph.outputs.extend(kept)
    for node in reversed(removed):
        model.graph.remove(node, safe=True)
    return {value: f"it depends on {reason}, which cannot be run" for value, reason in lost.items()}


def _runs(model: ir.Model, node: ir.Node, ctx: Context) -> bool:
    if node.op_identifier() in model.functions:
        return True
    # The evaluator takes an operator of a domain that it does not know for a function.
    if node.domain in _domains() and isinstance(oracle().supports(node), Accept):
        return True
    *_, backend = judging_backends(ctx.target)
    if backend.name == oracle().name:
        return False
    return isinstance(backend.supports(node), Accept)


@functools.cache
def _domains() -> frozenset[str]:
    return frozenset(schema.domain for schema in onnx.defs.get_all_schemas())


def _first_unknown(
    graph: ir.Graph, unknown: dict[ir.Node, str], calls: dict[ir.OperatorIdentifier, str]
) -> str:
    found = (unknown.get(n) or calls.get(n.op_identifier(), "") for n in graph.all_nodes())
    return next((label for label in found if label), "")


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads, and what its subgraphs do of values around them."""
    yield from (value for value in node.inputs if value is not None)
    for body in subgraphs(node):
        for graph in nested_graphs(body):
            yield from graph.outputs
            for inner in graph:
                yield from (value for value in inner.inputs if value is not None)


def _produced(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the outputs of a node, and of all nodes within its subgraphs."""
    yield from node.outputs
    for body in subgraphs(node):
        for graph in nested_graphs(body):
            yield from graph.inputs
            for inner in graph:
                yield from inner.outputs


def _label(node: ir.Node) -> str:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{name!r} ({node.domain or 'ai.onnx'}.{node.op_type})"
