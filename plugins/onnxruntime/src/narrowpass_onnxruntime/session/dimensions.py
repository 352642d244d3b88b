"""Free dimensions that a caller fixes when a session is created."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_ir.subgraphs import nested_graphs
from narrowpass_onnxruntime.session.metadata import Dim, Interface, NodeArg


@dataclass(frozen=True)
class Overrides:
    """Sizes of free dimensions.

    Attributes:
        by_name: of the dimensions that have a symbolic name.
        by_denotation: of the inputs' dimensions that have a denotation, such as ``DATA_BATCH``.
    """

    by_name: Mapping[str, int] = field(default_factory=dict)
    by_denotation: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_name or self.by_denotation)

    def __str__(self) -> str:
        return f"{sorted(self.by_name.items())} {sorted(self.by_denotation.items())}"

    def apply(self, model: ir.Model, interface: Interface) -> None:
        """Fix the dimensions of a model, in place."""
        if not self:
            return
        for value in _values(model):
            if value.shape is not None:
                value.shape = ir.Shape(
                    self._sized(str(dim.value), dim) if isinstance(dim, ir.SymbolicDim) else dim
                    for dim in value.shape
                )
        for value in model.graph.inputs:
            denotations = interface.denotations.get(value.name or "", ())
            if value.shape is not None and denotations:
                value.shape = ir.Shape(
                    self.by_denotation.get(denotation, dim)
                    for denotation, dim in zip(denotations, value.shape, strict=True)
                )

    def _sized(self, name: str, dim: ir.SymbolicDim) -> int | ir.SymbolicDim:
        return self.by_name.get(name, dim)

    def shown(self, interface: Interface) -> Interface:
        """Return the interface of a model whose dimensions are fixed."""
        if not self:
            return interface
        return dataclasses.replace(
            interface,
            inputs=tuple(self._arg(arg, interface) for arg in interface.inputs),
            outputs=tuple(self._arg(arg, interface) for arg in interface.outputs),
            overridable=tuple(self._arg(arg, interface) for arg in interface.overridable),
        )

    def _arg(self, arg: NodeArg, interface: Interface) -> NodeArg:
        denotations = interface.denotations.get(arg.name) or ("",) * len(arg.shape)
        shape: list[Dim] = [
            self.by_denotation.get(denotation, self.by_name.get(dim, dim))
            if isinstance(dim, str)
            else self.by_denotation.get(denotation, dim)
            for denotation, dim in zip(denotations, arg.shape, strict=True)
        ]
        return NodeArg(arg.name, arg.type, shape)


def forget_names(model: ir.Model) -> None:
    """Leave free dimensions without names, in place: those of one name may have several sizes."""
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape(
                ir.SymbolicDim(None) if isinstance(dim, ir.SymbolicDim) else dim
                for dim in value.shape
            )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in nested_graphs(model.graph):
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
