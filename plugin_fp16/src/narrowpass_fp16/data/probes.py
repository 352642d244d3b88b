"""Additional outputs that say how large values within branches, loops and functions are.

A model runs with them on any backend: each value of a subgraph is reduced to its largest magnitude
there, which becomes an output of the subgraph and of the node around it, out to the main graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_fp16.graph.schemas import FLOAT, is_float
from narrowpass_ir.subgraphs import model_graphs, subgraphs

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
