"""Running single nodes, or some nodes of a graph, on numpy values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_reference._evaluator import Value
from narrowpass_reference._graph import conform, constant_array, create_evaluator


class NodeEvaluator:
    """Runs some nodes of a model: what a backend falls back to for nodes that it rejects.

    Created once, run often, by several threads at once if need be. Later changes of the nodes have
    no effect.

    Args:
        nodes: nodes of one graph of `model`, in topological order.
        model: has operator set versions and functions.

    Attributes:
        inputs: names of the values that the nodes, or subgraphs in them, read and do not compute.
            Initializers are not among them: they are bound, as views of the weights.
        defaults: names of the initializers that are inputs of their graph as well.
        outputs: names of the values that the nodes compute.

    Raises:
        BackendError: a node that the reference evaluator cannot run; the message names it.
    """

    inputs: tuple[str, ...]
    defaults: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(self, nodes: Sequence[ir.Node], model: ir.Model) -> None:
        computed = [value for node in nodes for value in node.outputs if value.name]
        own = {value.name for value in computed}
        read = [value for value in _read_from_outside(nodes) if value.name not in own]
        self._constants = {
            value.name or "": constant_array(value)
            for value in read
            if value.is_initializer() and value.const_value is not None
        }
        self.inputs = tuple(v.name or "" for v in read if v.name not in self._constants)
        self.defaults = tuple(
            value.name or ""
            for value in read
            if value.name in self._constants and value.is_graph_input()
        )
        self.outputs = tuple(value.name or "" for value in computed)
        self._types = {value.name: value.type for value in computed}
        # Nodes may say a version of their own, as those do that a backend wrote.
        stated = {node.domain: node.version for node in nodes if node.version}
        opsets = {**model.opset_imports, **stated}
        self._evaluator = create_evaluator(
            nodes, self.inputs, self.outputs, opsets, model.functions
        )

    def run(
        self, values: Mapping[str, Value], outputs: Sequence[str] | None = None
    ) -> dict[str, Value]:
        """Run the nodes.

        Args:
            values: arrays, lists of arrays or None by name: all of `inputs`, and initializers
                that are to be overridden. Other names are ignored. Nothing is copied or checked
                but that all are there.
            outputs: which of `self.outputs` to return; None for all.

        Returns:
            The values by name, of the declared dtypes. They may share memory with `values` and
            with initializers: do not write into them.

        Raises:
            BackendError: an input that is missing, or a node that fails; the message names it.
        """
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise BackendError(f"no value for {missing[0]!r}, which the nodes read")
        wanted = self.outputs if outputs is None else tuple(outputs)
        unknown = [name for name in wanted if name not in self._types]
        if unknown:
            raise BackendError(f"none of the nodes computes {unknown[0]!r}")
        taken = {name: values[name] for name in (*self.inputs, *self._constants) if name in values}
        with np.errstate(all="ignore"):
            results = self._evaluator.evaluate({**self._constants, **taken}, frozenset(wanted))
        return {name: conform(results[name], self._types[name], name) for name in wanted}


def _read_from_outside(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    """Yield the values that the nodes and their subgraphs read and do not compute, each once."""
    seen: set[ir.Value] = set()

    def visit(within: Iterable[ir.Node]) -> Iterator[ir.Value]:
        for node in within:
            yield from unseen(node.inputs)
            for attribute in node.attributes.values():
                for graph in _graphs(attribute):
                    seen.update(graph.inputs, graph.initializers.values())
                    yield from visit(graph)
                    yield from unseen(graph.outputs)
            seen.update(node.outputs)

    def unseen(values: Iterable[ir.Value | None]) -> Iterator[ir.Value]:
        for value in values:
            if value is not None and value not in seen:
                seen.add(value)
                yield value

    yield from visit(nodes)


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()
