"""Free dimensions that a caller fixes, and initializers that it replaces, in one session."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_ir.subgraphs import nested_graphs
from narrowpass_onnxruntime.session.errors import error
from narrowpass_onnxruntime.session.metadata import Dim, Interface, NodeArg

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Overrides:
    """What session options change in a model.

    Attributes:
        by_name: of the dimensions that have a symbolic name.
        by_denotation: of the inputs' dimensions that have a denotation, such as ``DATA_BATCH``.
        initializers: values that take the place of those in the model, by name.
    """

    by_name: Mapping[str, int] = field(default_factory=dict)
    by_denotation: Mapping[str, int] = field(default_factory=dict)
    initializers: Mapping[str, Array] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_name or self.by_denotation or self.initializers)

    def __str__(self) -> str:
        digests = {
            name: hashlib.sha256(array.tobytes()).hexdigest()
            for name, array in self.initializers.items()
        }
        each = (self.by_name, self.by_denotation, digests)
        return " ".join(str(sorted(values.items())) for values in each)

    def apply(self, model: ir.Model, interface: Interface) -> None:
        """Change a model, in place.

        Raises:
            Fail: an initializer of another type or shape than the one that it replaces.
        """
        if not self:
            return
        for name, array in self.initializers.items():
            _replace(model.graph.initializers[name], array)
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
        """Return the interface of a model that was changed."""
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


def _replace(value: ir.Value, array: Array) -> None:
    """Replace the tensor of an initializer."""
    tensor, given = value.const_value, ir.tensor(array, name=value.name)
    if tensor is None or (given.dtype, given.shape) != (tensor.dtype, tensor.shape):
        found = "" if tensor is None else f"{tensor.dtype.name.lower()}{list(tensor.shape)}"
        raise error(
            "Fail",
            f"SessionOptions.add_initializer has {given.dtype.name.lower()}{list(given.shape)} "
            f"for {value.name!r}, which is {found} in the model; pass one like it",
        )
    value.const_value = given


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
