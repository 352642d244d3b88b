"""Shape propagation: shapes of values, and nodes whose outputs depend on shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass_planning.plan.step import Array, Shape


class Shapes:
    """The shapes of a method's values, and the values that follow from shapes; by name."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.shapes: dict[str, Shape] = {}
        self.values: dict[str, Array] = {}
        self._constants = constants

    def shape(self, name: str) -> Shape:
        """Return the shape of a value that was computed, or of an initializer."""
        found = self.shapes.get(name)
        return self._constants[name].shape if found is None else found

    def value(self, name: str) -> Array:
        """Return a value that follows from shapes, or an initializer."""
        found = self.values.get(name)
        return self._constants[name] if found is None else found


Evaluated = tuple[list[Any] | None, dict[str, Array]]
"""What a shape node read, None before its first evaluation, and its outputs by name."""


@dataclass(frozen=True)
class ShapeSource:
    """What a shape node was built from, as plain data from which it can be built again.

    Attributes:
        node: a serialized ``NodeProto``.
        version: of the operator set.
        dtypes: numbers of the element types of inputs and outputs; None where one is not known.
    """

    node: bytes
    version: int
    dtypes: tuple[int | None, ...]


class ShapeNode:
    """Shape arithmetic: a node that is evaluated when shapes change, not in each run.

    Args:
        name: the node's.
        inputs: names of its inputs; empty for an absent one.
        outputs: names of its outputs.
        by_shape: whether it reads the inputs' shapes, as Shape does, not their elements.
        evaluate: returns the outputs from the inputs, or from their shapes.
        source: what it was built from; None where it cannot be built again from plain data.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        by_shape: bool,
        evaluate: Callable[[Sequence[Any]], Sequence[Array]],
        source: ShapeSource | None = None,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.by_shape = by_shape
        self.source = source
        self._evaluate = evaluate
        self._known: list[Any] | None = None

    def update(self, shapes: Shapes) -> None:
        """Evaluate the node, unless nothing that it reads has changed."""
        if self.by_shape:
            given: list[Any] = [shapes.shape(name) for name in self.inputs]
            if given == self._known:
                return
        else:
            given = [shapes.value(name) if name else None for name in self.inputs]
            if self._known is not None and all(map(same, given, self._known)):
                return
        self._known = None
        for name, value in zip(self.outputs, self._evaluate(given), strict=True):
            shapes.values[name] = value
            shapes.shapes[name] = value.shape
        self._known = given

    def evaluated(self, shapes: Shapes) -> Evaluated:
        """Return what the last `update` read and found, for `restore`."""
        return self._known, {name: shapes.values[name] for name in self.outputs}

    def restore(self, evaluated: Evaluated, shapes: Shapes) -> None:
        """Put back what an `update` found, without evaluating the node."""
        self._known, outputs = evaluated
        shapes.values.update(outputs)
        for name, value in outputs.items():
            shapes.shapes[name] = value.shape


def same(one: Array | None, other: Array | None) -> bool:
    """Return whether two values that follow from shapes are equal, or both absent."""
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and one.tobytes() == other.tobytes()
