"""A range of a graph's nodes as a model of its own, with what they read as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import DataError
from narrowpass_ir.subgraphs import subgraphs

Array = np.ndarray[Any, Any]


class Parts:
    """Cuts a graph between its nodes.

    Args:
        model: not changed; its nodes stay in their order while this is in use.

    Attributes:
        produced: the number of the node that computes a value, by the value's name; -1 of an input
            of the graph. Outputs of Constant are not among them.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._model, self._nodes = model, list(graph)
        self._reads = [_reads(node) for node in self._nodes]
        self._last: dict[str, int] = {}
        for place, names in enumerate(self._reads):
            self._last.update(dict.fromkeys(names, place))
        self._values: dict[str, ir.Value] = dict(graph.initializers)
        self._values.update((value.name, value) for value in graph.inputs if value.name)
        self.produced: dict[str, int] = {value.name: -1 for value in graph.inputs if value.name}
        self._constants: dict[str, ir.Node] = {}
        for place, node in enumerate(self._nodes):
            constant = node.op_type == "Constant" and not node.domain
            for value in node.outputs:
                if not value.name:
                    continue
                self._values[value.name] = value
                if constant:
                    self._constants[value.name] = node
                else:
                    self.produced[value.name] = place
        # An input that has a default is a constant, unless it is fed.
        self._defaults = set(graph.initializers) & set(self.produced)

    def live(self, stop: int) -> list[str]:
        """Return the values, inputs among them, that are known before node `stop` and read there.

        Those that are read by a node after it are among them, those that none reads are not.
        """
        return [
            name
            for name, place in self.produced.items()
            if place < stop and self._last.get(name, -1) >= stop
        ]

    def part(
        self,
        start: int,
        stop: int,
        outputs: Sequence[str],
        weights: Mapping[str, ir.TensorProtocol],
        first: Mapping[str, Array],
    ) -> ir.Model:
        """Return what computes values from those that are known before a node.

        Args:
            start: the number of the first node.
            stop: the number of the node after the last.
            outputs: names of the values.
            weights: what initializers are in place of what they are in the model, by name.
            first: what is known, of the first sample.

        Raises:
            DataError: a value that is read is not known.
        """
        needed = self._needed(start, stop, outputs)
        reads: set[str] = set().union(*(self._reads[place] for place in needed))
        inputs, constants = [], []
        for name in sorted(reads):
            place = self.produced.get(name)
            default = place == -1 and name in self._defaults and name not in first
            if place is not None and place < start and not default:
                if name not in first:
                    raise DataError(f"the first sample has no {name!r}")
                inputs.append(self._values[name])
            elif name in self._model.graph.initializers:
                constants.append(self._values[name])
        literals = {self._constants[name] for name in reads if name in self._constants}
        nodes = [n for p, n in enumerate(self._nodes) if p in needed or n in literals]
        view = ir.GraphView(
            inputs,
            [self._values[name] for name in outputs],
            nodes=nodes,
            initializers=constants,
            opset_imports=dict(self._model.graph.opset_imports),
            name=self._model.graph.name,
        )
        graph = view.clone()
        for value in graph.inputs:
            array = np.asarray(first[value.name or ""])
            value.type = value.type or ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape([None] * array.ndim)
            value.const_value = None
        for name, value in graph.initializers.items():
            if name in weights:
                value.const_value = weights[name]
        functions = [function.clone() for function in self._model.functions.values()]
        return ir.Model(graph, ir_version=self._model.ir_version, functions=functions)

    def _needed(self, start: int, stop: int, outputs: Sequence[str]) -> set[int]:
        """Return the nodes of a range that these values depend on."""
        producers = {name: place for name, place in self.produced.items() if place >= start}
        waiting = [producers[name] for name in outputs]
        found: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place in found or place >= stop:
                continue
            found.add(place)
            waiting += [producers[name] for name in self._reads[place] if name in producers]
        return found


def _reads(node: ir.Node) -> set[str]:
    """Return the names that a node reads, within its bodies too."""
    found = {value.name for value in node.inputs if value is not None and value.name}
    for graph in subgraphs(node):
        for inner in graph:
            found |= _reads(inner)
        found |= {value.name for value in graph.outputs if value.name}
    return found
