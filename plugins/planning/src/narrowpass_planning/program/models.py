"""Models as methods are compiled from them: without function calls, with types and shapes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from narrowpass_ir.subgraphs import inline_functions, subgraphs
from narrowpass_planning.program.lowering import Lowering


def inferred(model: ir.Model, lowering: Lowering[Any]) -> ir.Model:
    """Return a clone without function calls, with types and shapes as far as they follow.

    Raises:
        BackendError: an operator that nothing computes.
    """
    clone = model.clone()
    if clone.functions:
        clone = inline_functions(clone)
        _separate(clone.graph, set())
    # Shapes that a file declares for intermediate values may be wrong: inferred ones come first.
    lowering.infer(clone)
    return clone


def forget_weights(model: ir.Model) -> None:
    """Drop the tensors of initializers: kept nodes refer to the graph, which refers to them."""
    for value in model.graph.initializers.values():
        value.const_value = None


def _separate(graph: ir.Graph, outer: set[str]) -> None:
    """Rename values of subgraphs that shadow values of outer scopes.

    Inlining of functions renames outputs of nodes, but not the inputs of subgraphs.
    """
    own = [*graph.inputs, *graph.initializers.values()]
    own += [value for node in graph for value in node.outputs]
    taken = outer | {value.name for value in own if value.name}
    for value in own:
        if value.name and value.name in outer:
            number = 1
            while f"{value.name}.{number}" in taken:
                number += 1
            value.name = f"{value.name}.{number}"
            taken.add(value.name)
    for node in graph:
        for inner in subgraphs(node):
            _separate(inner, taken)
