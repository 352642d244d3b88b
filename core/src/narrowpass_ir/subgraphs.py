"""The graphs within a graph: bodies and branches; all nodes of a model, and its functions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs among a node's attributes; not those within them."""
    if not node.attributes:  # most nodes; this is asked often
        return
    for attribute in node.attributes.values():
        kind = attribute.type
        if kind not in _GRAPHS or attribute.is_ref():
            continue
        if kind == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        else:
            yield from attribute.as_graphs()


def nested_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield `graph` and every graph within it, outer ones first."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += [inner for node in current for inner in subgraphs(node)]


def model_nodes(model: ir.Model) -> list[ir.Node]:
    """Return all nodes of a model: of its graph, of subgraphs, and of functions, in this order."""
    found = list(model.graph.all_nodes())
    for function in model.functions.values():
        found += function.all_nodes()
    return found


def model_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield all graphs of a model: its own, those of functions, and those within them."""
    yield from nested_graphs(model.graph)
    for function in model.functions.values():
        yield from nested_graphs(function.graph)


def inline_functions(model: ir.Model) -> ir.Model:
    """Put the nodes of functions in the place of calls, in place.

    Nodes of a function that has another version of an operator set than the model state it:
    `ir.Node.version`. Such a model can be compiled, and a file cannot hold it.

    Returns:
        The model without functions and calls of them.
    """
    from onnx_ir.passes.common import InlinePass

    for function in model.functions.values():
        _state_versions(function, model.opset_imports)
    return InlinePass()(model).model


def _state_versions(function: ir.Function, imports: dict[str, int]) -> None:
    others = {
        domain: version
        for domain, version in function.opset_imports.items()
        if imports.get(domain, version) != version
    }
    for node in function.all_nodes() if others else ():
        if node.version is None and node.domain in others:
            node.version = others[node.domain]
    for domain in others:  # the pass takes functions of the model's versions alone
        function.opset_imports[domain] = imports[domain]


class Opsets:
    """The version of the operator set that a node is of; functions have imports of their own.

    Args:
        model: as it is now.
    """

    def __init__(self, model: ir.Model) -> None:
        self._imports = model.opset_imports
        self._functions = {
            node: function for function in model.functions.values() for node in function.all_nodes()
        }

    def version(self, node: ir.Node) -> int:
        """Return the version; 1 where nobody says."""
        function = self._functions.get(node)
        imports = self._imports if function is None else function.opset_imports
        return node.version or imports.get(node.domain, 1)

    def enters(self, function: ir.Function) -> bool:
        """Return whether a function has the model's version of ONNX's own operators.

        Only then may a pass write such operators into it: a model has one version of each.
        """
        return function.opset_imports.get("", 0) == self._imports.get("", 0)

    def function(self, node: ir.Node) -> ir.Function | None:
        """Return the function that a node stands in; None for the graph of the model."""
        return self._functions.get(node)

    def label(self, node: ir.Node) -> str:
        """Name a node for reports: by its function too, and by its outputs if it has no name."""
        name = node.name or next((value.name for value in node.outputs if value.name), "") or ""
        function = self._functions.get(node)
        return name if function is None else f"{function.name}/{name}"


def reserve_name(name: str, taken: set[str | None]) -> str:
    """Return `name`, with a number behind it if it is in use, and mark it as used.

    Args:
        name: that is wanted.
        taken: the names in use, of values or nodes; the one returned is added.
    """
    chosen, number = name, 1
    while chosen in taken:
        chosen, number = f"{name}.{number}", number + 1
    taken.add(chosen)
    return chosen
