"""A block that is being drawn: nodes that belong together, each with its elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from narrowpass_testing.random_models._draft import UnfitError
from narrowpass_testing.random_models._elements import TYPES, Array, draw_array, draw_shape
from narrowpass_testing.random_models._oracles import run_nodes

if TYPE_CHECKING:
    from narrowpass_testing.random_models._builder import Builder

FLOATS = ("float",) * 8 + ("float16", "double")


class Chain:
    """Adds the nodes of a block to a graph.

    Attributes:
        random: of choices.
        numbers: of elements.
        float: the type of most operands of this block.
    """

    def __init__(self, builder: Builder, *, alone: bool = False) -> None:
        self.builder = builder
        self.random, self.numbers = builder.random, builder.numbers
        self.float = TYPES[self.pick(*(builder.style.prefers(FLOATS)))]
        self._alone = alone

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.builder.opset

    def pick(self, *values: Any) -> Any:
        """Return one of some values."""
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        """Return True that often."""
        return self.builder.chance(share)

    def value(self, name: str) -> Array:
        """Return the elements of a value."""
        array: Array = self.builder.values[name]
        return array

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        shape: tuple[int, ...] = self.value(name).shape
        return shape

    def scale_of(self, name: str) -> Array:
        """Return the scale of a value that a DequantizeLinear computes."""
        node = next(node for node in self.builder.nodes if name in node.output)
        return self.value(node.input[1])

    # Operands.

    def take(
        self,
        least: int = 1,
        most: int = 4,
        fits: Callable[[Array], bool] = lambda _: True,
        *,
        exact: bool = False,
    ) -> str:
        """Return a float value of the graph, or a new input, which has elements.

        Args:
            least: the lowest rank.
            most: the highest rank.
            fits: whether an array will do.
            exact: whether it must not depend on the order of computation, as what is quantized.

        Raises:
            UnfitError: nothing that was drawn fits.
        """

        def good(array: Array) -> bool:
            kind = array.dtype in (self.float, TYPES["float"])
            return kind and array.size > 0 and least <= array.ndim <= most and fits(array)

        found = self.builder.choose("QuantizeLinear" if exact else "", good)
        if found is not None:
            self.float = self.value(found).dtype
            return found
        for _ in range(8):
            shape = draw_shape(self.random, least, most, False, self.builder.largest)
            array = draw_array(self.random, self.numbers, self.float, shape)
            if good(array):
                return self.builder.store(array, 0.15)
        raise UnfitError

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Draw normally distributed elements of float32."""
        return np.asarray(self.numbers.standard_normal(tuple(shape)) * scale).astype(np.float32)

    def weight(self, shape: Sequence[int], *, fed: float = 0.1) -> str:
        """Add elements whose sum over all axes but the first has a deviation of about 1.

        Args:
            shape: of the operand.
            fed: how often it is an input.
        """
        fan = math.prod(shape[1:]) or 1
        return self.operand(self.floats(shape, 1 / math.sqrt(fan)), fed=fed)

    def operand(self, array: Any, *, fed: float = 0.1) -> str:
        """Add an operand of known elements, floats in the type of the block."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self.float)
        return self.builder.store(array, 1 - fed)

    def number(self, value: float) -> str:
        """Add a constant of one element, most often a scalar."""
        return self.operand(np.full((1,) * self.pick(0, 0, 0, 1), value, np.float32), fed=0)

    def ints(self, *values: int) -> str:
        """Add whole numbers, such as axes."""
        return self.constant(np.array(values, np.int64))

    def fed(self, array: Any) -> str:
        """Add an input."""
        return self.builder.store(np.asarray(array), 0.0)

    def constant(self, array: Any) -> str:
        """Add an initializer, or a Constant."""
        return self.builder.store(np.asarray(array), 1.0)

    # Nodes.

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        domain: str = "",
        last: bool = False,
        **attributes: Any,
    ) -> str:
        """Add a node of one output; return its name.

        Args:
            operator: its name.
            inputs: names, "" for those that are left out.
            domain: of the operator.
            last: of a block that stands alone: whether the result may be an output.
            **attributes: as `onnx.helper.make_node` takes them; None or an empty list for one that
                is left out.

        Raises:
            UnfitError: no oracle runs it, or its results are no ordinary numbers.
        """
        return self.several(operator, inputs, 1, domain=domain, last=last, **attributes)[0]

    def several(
        self,
        operator: str,
        inputs: Sequence[str],
        count: int,
        *,
        domain: str = "",
        last: bool = False,
        **attributes: Any,
    ) -> list[str]:
        """Add a node of several outputs; see `add`."""
        builder = self.builder
        names = [builder.name("v") for _ in range(count)]
        operands = list(inputs)
        while operands and not operands[-1]:
            operands.pop()
        given = {
            key: value for key, value in attributes.items() if value is not None and value != []
        }
        node = onnx.helper.make_node(operator, operands, names, domain=domain, **given)
        read = {each: builder.values[each] for each in operands if each}
        found = run_nodes([node], read, names, builder.opset_imports())
        if found is None or not all(isinstance(value, np.ndarray) for value in found):
            raise UnfitError
        if not self._alone and not all(map(builder.takes, found)):
            raise UnfitError
        builder.nodes.append(node)
        builder.values.update(zip(names, found, strict=True))
        if self._alone and not last:
            builder.hidden.update(names)
        return names
