"""Replaces operators by their expansions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_expansion.emitter import AlreadyExpanded, EmittedNodes, Emitter, Key, Unsupported
from narrowpass_expansion.rules import OPERATORS
from narrowpass_ir.inference import infer
from narrowpass_ir.subgraphs import model_graphs


@dataclass(frozen=True)
class Expansion:
    """The result for one node.

    Attributes:
        node: its name, or its first output's name if it has none.
        op_type: its operator.
        domain: the operator's domain; empty for ONNX's.
        reason: why it was not expanded; empty if it was.
    """

    node: str
    op_type: str
    domain: str
    reason: str = ""


def expand(
    model: ir.Model,
    *,
    keep: Collection[tuple[str, str]] = (),
    skip: Collection[ir.Node] = (),
    subgraphs: bool = True,
) -> list[Expansion]:
    """Expand the operators of `OPERATORS` to operators of opset `OPSET`, in place.

    New nodes have that version, also in a model of another opset: a backend may compile such a
    model, a file cannot hold it. Types and shapes of values are inferred. Results are those of the
    operators, up to the order of floating-point additions.

    Args:
        model: modified in place.
        keep: operators to leave alone, as (domain, type).
        skip: nodes to leave alone.
        subgraphs: whether nodes within nodes and functions are expanded too.

    Returns:
        The result for each node that is one of these operators, in order.
    """
    found: list[Expansion] = []
    scopes = _scopes(model)
    opsets = model.opset_imports
    sizes = {
        dim.value: (value, axis)
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int) and dim.value
    }

    ours: set[ir.Node] = set()
    known: dict[ir.Graph | ir.Function | None, EmittedNodes] = {}
    keys: dict[ir.Value, Key] = {}  # of outputs of emitted nodes

    def replace(node: ir.Node) -> Sequence[ir.Node] | None:
        key = "" if node.domain == "ai.onnx" else node.domain, node.op_type
        rule = OPERATORS.get(key)
        if rule is None or key in keep or node in skip or node.op_identifier() in model.functions:
            return None
        version = node.version or opsets.get(node.domain, 1)
        if version < rule.since:
            return None
        label = _label(node)
        written = known.setdefault(node.graph, {})
        emitter = Emitter(node, _unique(label, scopes), written, sizes)
        try:
            results = rule.write(emitter)
        except AlreadyExpanded:
            emitter.discard()
            return None
        except Unsupported as error:
            emitter.discard()
            found.append(Expansion(label, node.op_type, node.domain, str(error)))
            return None
        nodes = _replace_node(node, emitter, results, scopes, model)
        written.update(emitter.new)
        keys.update((value, key) for key, values in emitter.new.items() for value in values)
        for value in node.outputs:  # an emitted node that is expanded itself
            if value in keys:
                written.pop(keys.pop(value), None)
        ours.update(nodes)
        if node not in ours:
            found.append(Expansion(label, node.op_type, node.domain))
        return nodes

    infer(model, subgraphs=subgraphs, replace=replace)
    return found


def _scopes(model: ir.Model) -> set[str]:
    """Return what stands before a slash in the name of a node or value, for each slash."""
    scopes: set[str] = set()
    for graph in model_graphs(model):
        _add_scopes(scopes, [value.name for value in graph.inputs])
        _add_scopes(scopes, graph.initializers)
        for node in graph:
            _add_scopes(scopes, [node.name, *(value.name for value in node.outputs)])
    return scopes


def _add_scopes(scopes: set[str], names: Iterable[str | None]) -> None:
    for name in names:
        if name:
            scopes.update(name[:at] for at, letter in enumerate(name) if letter == "/")


def _label(node: ir.Node) -> str:
    return node.name or next((value.name for value in node.outputs if value.name), "") or ""


def _unique(label: str, scopes: set[str]) -> str:
    """Return `label`, numbered if it is a scope of an existing name."""
    tried, number = label, 1
    while tried in scopes and number < 1000:
        number += 1
        tried = f"{label}.{number}"
    return tried


def _replace_node(
    node: ir.Node,
    emitter: Emitter,
    results: Sequence[ir.Value | None],
    scopes: set[str],
    model: ir.Model,
) -> list[ir.Node]:
    """Replace `node` by the emitted nodes; its outputs keep their names."""
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} belongs to no graph")
    asked = [(old, new) for old, new in zip(node.outputs, results, strict=False) if old.name]
    emitted = {value for new in emitter.nodes for value in new.outputs}
    taken: set[ir.Value] = set()
    for old, value in asked:
        if value is None:
            continue
        new = value
        if value not in emitted or value in taken:
            if not old.is_graph_output():
                old.replace_all_uses_with(value)  # `value` keeps its own name and type
                continue
            new = emitter.copy(value)
        taken.add(new)
        new.name, old_name = old.name, old.name
        old.name = None
        new.type, new.shape = old.type, old.shape
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        if old.is_graph_output():
            _replace_output(graph, old, new)
        old.replace_all_uses_with(new)
        _add_scopes(scopes, [old_name])
    for new_node in emitter.nodes:
        new_node.metadata_props.update(node.metadata_props)
    graph.insert_before(node, emitter.nodes)
    graph.remove(node, safe=True)
    for weight in emitter.weights:
        model.graph.initializers.add(weight)
    for new_node in emitter.nodes:
        _add_scopes(scopes, [new_node.name, *(value.name for value in new_node.outputs)])
    return list(emitter.nodes)


def _replace_output(graph: ir.Graph | ir.Function, old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new
