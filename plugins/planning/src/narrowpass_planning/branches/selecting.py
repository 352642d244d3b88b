"""Ifs of a few cheap nodes: if-conversion to both branches and a Where.

A script's `a and b` is such an If. It would end a partition, and keep a loop from running in one
call. Nothing that may fail is computed where its branch is not taken.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from narrowpass_ir.inference import infer
from narrowpass_ir.subgraphs import subgraphs
from narrowpass_planning.branches.inlining import branches, names_of, take_out

_CHEAP = {
    *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Constant", "Equal", "Floor", "Greater"),
    *("GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not"),
    *("Or", "Relu", "Sigmoid", "Sign", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
}
"""Elementwise operators that do not fail, whatever their operands' elements are."""

_MOST_NODES = 6
"""Of a branch."""
_MOST_ELEMENTS = 1 << 10
"""Of a result."""
_WHERE = 9
"""The operator set from which on there is Where."""


def select(model: ir.Model) -> None:
    """Replace small Ifs of the main graph by both branches and a Where (if-conversion).

    Args:
        model: changed in place, with types inferred; they are to be inferred again.
    """
    if model.opset_imports.get("", 1) < _WHERE:
        return
    tried = model.clone()
    found = _replace(tried, None)
    if not found:
        return
    infer(tried)
    fit = {label for label, nodes in found.items() if all(map(_fits, nodes))}
    _replace(model, fit)


def _replace(model: ir.Model, labels: set[str] | None) -> dict[str, list[ir.Node]]:
    """Replace small Ifs, those of these labels or all; return the Where nodes by label."""
    graph, names = model.graph, names_of(model.graph)
    found: dict[str, list[ir.Node]] = {}
    for node in list(graph):
        label = next((value.name for value in node.outputs if value.name), "") or ""
        if not _is_small(node) or (labels is not None and label not in labels):
            continue
        parts = [take_out(branch, label, names) for branch in branches(node)]
        nodes = [item for part in parts for item in part.nodes]
        chosen = []
        for old, *results in zip(node.outputs, *(part.results for part in parts), strict=True):
            if not old.name:
                continue
            where = ir.Node("", "Where", [node.inputs[0], *results], name=node.name)
            new = where.outputs[0]
            new.name, old.name = old.name, None
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            chosen.append(where)
        for weight in (weight for part in parts for weight in part.weights):
            graph.initializers.add(weight)
        graph.insert_before(node, [*nodes, *chosen])
        graph.remove(node, safe=True)
        found[label] = chosen
    return found


def _is_small(node: ir.Node) -> bool:
    if node.op_type != "If" or node.domain or node.inputs[0] is None:
        return False
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    condition = node.inputs[0].shape
    if condition is None or len(condition) != 0:
        return False
    return all(
        len(branch) <= _MOST_NODES
        and all(item.op_type in _CHEAP and not item.domain for item in branch)
        and not any(any(subgraphs(item)) for item in branch)
        for branch in branches(node)
    )


def _fits(where: ir.Node) -> bool:
    """Return whether both choices are small tensors of one type and shape."""
    one, other = where.inputs[1:]
    if one is None or other is None or one.shape is None or other.shape is None:
        return False
    dims = [dim for dim in one.shape if isinstance(dim, int)]
    alike = one.dtype is not None and one.dtype == other.dtype and one.shape == other.shape
    return alike and len(dims) == len(one.shape) and math.prod(dims) <= _MOST_ELEMENTS
