"""Types and shapes that follow from a model's inputs and operators, for the time of a pass.

What a file declares of values between nodes may be wrong, and runtimes go on with a warning then.
So no rewrite believes it: passes see what follows, and afterwards values declare what they did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_constant_folding.report import Report
from narrowpass_constant_folding.shapes.declarations import Declarations, inner_values
from narrowpass_constant_folding.shapes.graphs import GraphInference
from narrowpass_constant_folding.shapes.types import Type, type_of

_KEY = "narrowpass_constant_folding.shapes.derived"


@dataclass(frozen=True)
class _Output:
    """What an output of the model's graph declares."""

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
    outputs = [_Output(value.type, value.shape) for value in model.graph.outputs]
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
