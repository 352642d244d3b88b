"""Which types and shapes a model declares, so that what a pass inferred can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_ir.subgraphs import nested_graphs


class _Declared(NamedTuple):
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


_NOTHING = _Declared(None, None)


class Declarations:
    """The types and shapes of all inner values of a model at one time.

    A value is known again by its name, since a rewrite may put another in its place; where a
    name stands for several values, by its identity.
    """

    def __init__(self, model: ir.Model) -> None:
        """Remember what `model` declares now."""
        self._by_value: dict[ir.Value, _Declared] = {}
        self._by_name: dict[tuple[object, str], _Declared | None] = {}
        for root, value in inner_values(model):
            declared = _Declared(value.type, value.shape)
            self._by_value[value] = declared
            if value.name:
                key = (root, value.name)
                self._by_name[key] = None if key in self._by_name else declared

    def restore(self, model: ir.Model) -> None:
        """Let each inner value declare what it did then; those that are new, nothing."""
        for root, value in inner_values(model):
            declared = self._by_name.get((root, value.name or ""))
            if declared is None:
                declared = self._by_value.get(value, _NOTHING)
            if value.type is not declared.type:
                value.type = declared.type
            if value.shape is not declared.shape:
                value.shape = declared.shape


def inner_values(model: ir.Model) -> Iterator[tuple[object, ir.Value]]:
    """Yield every value that is no constant and no input or output of the model, with its root."""
    identifiers: list[object] = [None, *model.functions]
    for identifier, root in zip(identifiers, roots(model), strict=True):
        for graph in nested_graphs(root.graph):
            if graph is not model.graph:
                for value in graph.inputs:
                    yield identifier, value
            for node in graph:
                for value in node.outputs:
                    if not (graph is model.graph and value.is_graph_output()):
                        yield identifier, value
