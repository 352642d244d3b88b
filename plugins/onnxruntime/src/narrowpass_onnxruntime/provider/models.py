"""Models of groups of nodes, as the backend compiles them, and samples of what they are fed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass.calibration.samples import Samples
from narrowpass.errors import DataError
from narrowpass_onnxruntime.backend import OnnxRuntimeBackend
from narrowpass_onnxruntime.provider.graph import Graph, Node

_IR_VERSION = 10


def model_of(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], *, copy: bool
) -> ir.Model:
    """Return the model of some nodes of a graph.

    Args:
        graph: that the nodes belong to.
        nodes: in topological order.
        outputs: names of the values that are computed for others.
        copy: whether constants are copies. Otherwise the model is valid as long as the graph is.

    Returns:
        A model whose inputs are what the nodes read and do not compute, in the order of their use.
    """
    values: dict[str, ir.Value] = {}

    def value(name: str) -> ir.Value:
        if name not in values:
            dims = graph.shapes.get(name)
            dtype = graph.types.get(name)
            values[name] = ir.Value(
                name=name,
                type=None if dtype is None else ir.TensorType(dtype),
                shape=None if dims is None else ir.Shape(dims),
            )
        return values[name]

    emitted = [
        ir.Node(
            node.domain,
            node.op_type,
            [value(name) if name else None for name in node.inputs],
            node.attributes or (),
            outputs=[value(name) if name else ir.Value(name="") for name in node.outputs],
            name=node.name,
        )
        for node in nodes
    ]
    constants = constants_of(graph, nodes)
    for name in constants:
        values[name].const_value = graph.constants[name].read(name, copy=copy)
    inputs = fed_to(graph, nodes)
    return ir.Model(
        ir.Graph(
            [values[name] for name in inputs],
            [values[name] for name in outputs],
            nodes=emitted,
            initializers=[values[name] for name in constants],
            opset_imports=_opsets(graph, nodes),
            name="group",
        ),
        ir_version=_IR_VERSION,
    )


def constants_of(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return the names of the constants that nodes read, in order."""
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    return [name for name in read if name in graph.constants]


def fed_to(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return the names of what nodes read and do not compute, but for constants, in order."""
    computed = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    return [name for name in read if name not in computed and name not in graph.constants]


def results_of(graph: Graph, nodes: Sequence[Node], others: Collection[Node]) -> list[str]:
    """Return the names of what nodes compute for other nodes or as outputs of the graph."""
    wanted = {name for node in others for name in (*node.inputs, *node.captured)} | graph.outputs
    return [name for node in nodes for name in node.outputs if name in wanted]


def _opsets(graph: Graph, nodes: Sequence[Node]) -> dict[str, int]:
    used = {"", *(node.domain for node in nodes)}
    return {domain: graph.opsets[domain] for domain in sorted(used) if domain in graph.opsets}


def samples_of(graph: Graph, nodes: Sequence[Node], samples: Samples) -> Samples:
    """Return samples for a group of nodes; valid as long as the graph.

    Args:
        graph: that the nodes belong to.
        nodes: of the group, in topological order.
        samples: feeds of the model that the graph is of.

    Returns:
        Samples whose rounds raise DataError where a value of the group is not fed, and follows
        from no feed by nodes that can be run apart.
    """
    wanted = fed_to(graph, nodes)
    needed = _producers(graph, wanted)
    computed = {name for node in needed for name in node.outputs}
    return Samples(samples.source, lambda: _feeds(graph, needed, wanted, computed, samples))


def _feeds(
    graph: Graph,
    needed: Sequence[Node],
    wanted: Sequence[str],
    computed: set[str],
    samples: Samples,
) -> Iterator[dict[str, Any]]:
    if not needed:
        for feeds in samples:
            yield {name: _fed(feeds, name) for name in wanted}
        return
    inner = [name for name in wanted if name in computed]
    fed = fed_to(graph, needed)
    for node in needed:
        if node.attributes is None:
            raise DataError(
                f"node {node.name!r} ({node.op_type}), which computes what a group is fed, "
                "cannot be run apart from its model, so that samples do not reach the group"
            )
    model = model_of(graph, needed, inner, copy=False)
    bundle = Bundle({"main": model}, states=())
    with narrowpass.load(bundle, OnnxRuntimeBackend()) as program:
        for feeds in samples:
            found = program.run({name: _fed(feeds, name) for name in fed})
            yield {name: found[name] if name in computed else _fed(feeds, name) for name in wanted}


def _fed(feeds: Mapping[str, Any], name: str) -> Any:
    if name not in feeds:
        raise DataError(
            f"a sample has no {name!r}, which the model is fed; it has {', '.join(sorted(feeds))}"
        )
    return feeds[name]


def _producers(graph: Graph, names: Sequence[str]) -> list[Node]:
    """Return the nodes that the values of these names follow from, in order."""
    wanted = set(names)
    found = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs if name):
            found.append(node)
            wanted.update((*node.inputs, *node.captured))
    return found[::-1]
