"""A pattern that is being drawn: nodes that belong together, each with its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from differential.draft import UnfitError
from differential.elements import Array
from differential.oracles import run_nodes

if TYPE_CHECKING:
    from differential.builder import Builder


class Chain:
    """Adds nodes to a builder; what is between them may be rounded, and becomes no output."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.random, self.numbers = builder.random, builder.numbers

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.builder.opset

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def value(self, name: str) -> Array:
        """Return the elements of a value."""
        array: Array = self.builder.values[name]
        return array

    def scale_of(self, name: str) -> Array:
        """Return the scale of a value that a DequantizeLinear computes."""
        node = next(node for node in self.builder.nodes if name in node.output)
        return self.value(node.input[1])

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Draw normally distributed elements."""
        return np.asarray(self.numbers.standard_normal(tuple(shape)) * scale).astype(np.float32)

    def fed(self, array: Any) -> str:
        """Add an input."""
        return self.builder.store(np.asarray(array), 0.0)

    def constant(self, array: Any) -> str:
        """Add an initializer."""
        return self.builder.store(np.asarray(array), 1.0)

    def add(
        self, operator: str, inputs: Sequence[str], *, last: bool = False, **attributes: Any
    ) -> str:
        """Add a node of one output.

        Args:
            operator: of the default domain.
            inputs: names, "" for those that are left out.
            last: whether the result may be an output.
            **attributes: as `onnx.helper.make_node` takes them.

        Raises:
            UnfitError: no oracle runs it.
        """
        builder = self.builder
        name = builder.name("v")
        node = onnx.helper.make_node(operator, list(inputs), [name], **attributes)
        read = {each: builder.values[each] for each in inputs if each}
        found = run_nodes([node], read, [name], builder.opset_imports())
        if found is None or not isinstance(found[0], np.ndarray):
            raise UnfitError
        builder.nodes.append(node)
        builder.values[name] = found[0]
        if not last:
            builder.hidden.add(name)
        return name


Pattern = Callable[[Chain], None]
