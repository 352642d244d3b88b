"""Removes Identity nodes, keeping the names of graph inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from narrowpass_constant_folding._report import Report
from narrowpass_constant_folding._scopes import (
    names_defined_twice,
    nested_graphs,
    output_positions,
    remove_nodes,
    roots,
)


def eliminate_identities(model: ir.Model, kept: Collection[ir.Node], report: Report) -> bool:
    """Remove the Identity nodes that are not needed; give whether any went.

    One stays where it gives a graph output a name of its own: its source is an input, an
    initializer or an output of the graph, or comes from an outer graph.

    Args:
        model: changed in place.
        kept: nodes to leave alone.
        report: counts them.
    """
    candidates = [
        (graph, node)
        for root in roots(model)
        for graph in nested_graphs(root.graph)
        for node in graph
        if _is_identity(node) and node not in kept
    ]
    if not candidates:
        return False
    clashing = names_defined_twice(model)
    gone: dict[ir.Graph, list[ir.Node]] = {}
    outputs: dict[ir.Graph, dict[ir.Value, list[int]]] = {}
    for graph, node in candidates:
        if graph not in outputs:
            outputs[graph] = output_positions(graph)
        if _bypass(graph, node, outputs[graph], clashing):
            gone.setdefault(graph, []).append(node)
    for graph, nodes in gone.items():
        remove_nodes(graph, nodes)
        report.count("identities", len(nodes))
    return bool(gone)


def _is_identity(node: ir.Node) -> bool:
    return (
        node.op_type == "Identity"
        and node.domain == ""
        and len(node.inputs) == 1
        and len(node.outputs) == 1
    )


def _bypass(
    graph: ir.Graph,
    node: ir.Node,
    outputs: dict[ir.Value, list[int]],
    clashing: Collection[str],
) -> bool:
    """Make the users of the node read its input; give whether the node is now unused."""
    source, copy = node.inputs[0], node.outputs[0]
    if source is None:
        return False
    if source.name in clashing or copy.name in clashing:
        return False
    if not copy.is_graph_output():
        _complete_type(source, copy)
        copy.replace_all_uses_with(source)
        return True
    producer = source.producer()
    if producer is None or producer.graph is not graph or source.is_graph_output():
        return False
    for index in outputs[copy]:
        graph.outputs[index] = source
    outputs[source] = outputs.pop(copy)
    copy.replace_all_uses_with(source)
    _take_signature(source, copy)
    return True


def _complete_type(source: ir.Value, copy: ir.Value) -> None:
    if source.is_graph_input() or source.is_graph_output():
        return
    if source.type is None:
        source.type = copy.type
    if source.shape is None:
        source.shape = copy.shape


def _take_signature(source: ir.Value, copy: ir.Value) -> None:
    """Make `source` the output that `copy` was."""
    name = copy.name
    copy.name = None
    source.name = name
    source.type = copy.type
    source.shape = copy.shape
    source.doc_string = copy.doc_string
    source.metadata_props.clear()
    source.metadata_props.update(copy.metadata_props)
