"""Types and shapes that follow from a model's inputs and operators, for the time of a pass.

What a file declares of values between nodes may be wrong, and runtimes go on with a warning then.
So no rewrite believes it: passes see what follows, and afterwards values declare what they did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from narrowpass_constant_folding.graphs.scopes import roots
from narrowpass_constant_folding.report import Report
from narrowpass_constant_folding.shapes.graphs import GraphInference
from narrowpass_constant_folding.shapes.types import Type, type_of
from narrowpass_ir.subgraphs import nested_graphs

_KEY = "narrowpass_constant_folding.shapes.derived"


class _Declared(NamedTuple):
    """The type and shape that a value declares."""

    type: ir.TypeProtocol | None
    shape: ir.Shape | None


def is_derived(model: ir.Model) -> bool:
    """Whether `derived_types` is active for the model."""
    return _KEY in model.meta


@contextlib.contextmanager
def derived_types(model: ir.Model, report: Report | None = None) -> Iterator[Sequence[ir.Value]]:
    """Replace the types and shapes of inner values and outputs by those inferred from the inputs.

    Restores the declarations on exit; a new inner value has none. Does nothing while
    another call for the model is at work.

    Args:
        model: may be rewritten meanwhile; its graph keeps the number of its outputs.
        report: records contradictions between inferred and declared types.

    Yields:
        The inner values.
    """
    if is_derived(model):
        yield [value for _, value in inner_values(model)]
        return
    declarations = Declarations(model)
    outputs = [_Declared(value.type, value.shape) for value in model.graph.outputs]
    values = [value for _, value in inner_values(model)]
    computed = [value for value in model.graph.outputs if value.producer() is not None]
    hints = {value: type_of(value) for value in (*values, *computed)}
    for value in hints:
        value.type = value.shape = None
    model.meta[_KEY] = {
        value.name: type_ for value, type_ in hints.items() if value.is_graph_output()
    }
    try:
        GraphInference(model, report or Report(), hints, outputs=True).infer(model)
        yield values
    finally:
        del model.meta[_KEY]
        declarations.restore(model)
        for value, declared in zip(model.graph.outputs, outputs, strict=True):
            if value.type is not declared.type:
                value.type = declared.type
            if value.shape is not declared.shape:
                value.shape = declared.shape


def declared_output(model: ir.Model, value: ir.Value) -> Type:
    """Return what the file declares of an output of the model's graph, while types are derived."""
    if is_derived(model) and value.graph is model.graph:
        found: Type | None = model.meta[_KEY].get(value.name)
        if found is not None:
            return found
    return type_of(value)


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
