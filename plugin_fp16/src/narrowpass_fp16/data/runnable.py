"""What of a model can be run on data, where it has operators that nothing here knows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from narrowpass import Accept
from narrowpass.runtime.oracle import oracle
from narrowpass_analysis.verification import judging_backends
from narrowpass_ir.subgraphs import model_nodes, nested_graphs, subgraphs

if TYPE_CHECKING:
    from narrowpass import Context


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
