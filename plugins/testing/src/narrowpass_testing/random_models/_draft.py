"""One node that is being drawn from its schema: types solved, operands and attributes added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from narrowpass_testing.random_models._elements import (
    TYPES,
    WEIGHTS,
    Array,
    allowed,
    draw_array,
    draw_shape,
)

if TYPE_CHECKING:
    from narrowpass_testing.random_models._builder import Builder


class UnfitError(Exception):
    """The schema, or what the graph has so far, leaves nothing to draw."""


class Draft:
    """A node before it is part of a graph.

    Attributes:
        inputs: names of operands in the graph, "" for those that are left out.
        arrays: their values for the feeds; None for those that are left out.
        attributes: by name, as `onnx.helper.make_node` takes them.
        outputs: how many outputs the node has.
    """

    def __init__(self, builder: Builder, schema: OpSchema) -> None:
        self.builder, self.schema = builder, schema
        self.random, self.numbers = builder.random, builder.numbers
        self.inputs: list[str] = []
        self.arrays: list[Array | None] = []
        self.attributes: dict[str, Any] = {}
        self.outputs = 1
        self._bound: dict[str, str] = {}

    # Draws.

    def chance(self, share: float) -> bool:
        return self.builder.chance(share)

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def axis(self, rank: int) -> int:
        """Draw an axis, counted from the end in a third of the draws."""
        if not rank:
            raise UnfitError
        axis = self.random.randrange(rank)
        negative = self.chance(0.3) and self.schema.since_version >= 11
        return axis - rank if negative else axis

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Draw a shape that broadcasts to another one, of its rank or a lower one."""
        other = [size if self.chance(0.7) else 1 for size in shape]
        return tuple(other[self.pick(0, 0, 0, *range(len(other) + 1)) :])

    # Types.

    def formal(self) -> OpSchema.FormalParameter:
        """Return the schema's parameter that the next operand is for; the last one repeats."""
        formals = self.schema.inputs
        if len(self.inputs) < len(formals):
            return formals[len(self.inputs)]
        if not formals or formals[-1].option != OpSchema.FormalParameterOption.Variadic:
            raise UnfitError
        return formals[-1]

    def has_input(self, index: int) -> bool:
        return index < len(self.schema.inputs)

    def types(self) -> list[str]:
        """Return the types that the next operand may have, those bound by earlier ones solved."""
        formal = self.formal()
        bound = self._bound.get(formal.type_str)
        if bound is not None and not self._is_loose(formal):
            return [bound]
        return allowed(list(formal.types))

    def _is_loose(self, formal: OpSchema.FormalParameter) -> bool:
        return (
            formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
        )

    def bind(self, name: str | None = None, among: Sequence[str] = ()) -> np.dtype[Any]:
        """Choose the type of the next operand and bind its type variable to it."""
        types = [t for t in self.types() if not among or t in among]
        if name is None:
            if not types:
                raise UnfitError
            types = list(self.builder.style.prefers(types))
            name = self.random.choices(types, [WEIGHTS.get(t, 1) for t in types])[0]
        self._bound.setdefault(self.formal().type_str, name)
        return TYPES[name]

    def kind(self) -> np.dtype[Any]:
        """Return the type of the first operand."""
        array = self.arrays[0]
        if array is None:
            raise UnfitError
        dtype: np.dtype[Any] = array.dtype
        return dtype

    # Operands.

    def take(
        self,
        least: int = 0,
        most: int = 5,
        *,
        fits: Callable[[Array], bool] = lambda _: True,
        among: Sequence[str] = (),
        shape: Sequence[int] | None = None,
    ) -> Array:
        """Add an operand: a value of the graph, or a new input.

        Args:
            least: the lowest rank.
            most: the highest rank.
            fits: whether an array will do.
            among: names of types, fewer than the schema allows.
            shape: the shape of a new one; by default it is drawn.
        """
        names = self.builder.style.prefers([t for t in self.types() if not among or t in among])
        dtypes = {TYPES[t]: t for t in names}
        found = self.builder.choose(
            self.schema.name,
            lambda a: (
                a.dtype in dtypes
                and least <= a.ndim <= most
                and (shape is None or a.shape == tuple(shape))
                and fits(a)
            ),
        )
        if found is not None:
            array = self.builder.values[found]
            self.bind(dtypes[array.dtype])
            return self._add(found, array)
        dtype = self.bind(among=among)
        for _ in range(8):
            drawn = (
                draw_shape(self.random, least, most, self.builder.zeros, self.builder.largest)
                if shape is None
                else shape
            )
            array = draw_array(self.random, self.numbers, dtype, drawn)
            if fits(array):
                return self.operand(array, constant=0.15)
        raise UnfitError

    def operand(self, array: Any, *, constant: float = 0.7) -> Array:
        """Add a new operand of known elements: an initializer that often, else an input."""
        array = np.asarray(array)
        names = {TYPES[t]: t for t in self.types()}
        if array.dtype not in names:
            raise UnfitError
        self.bind(names[array.dtype])
        return self._add(self.builder.store(array, constant), array)

    def draw(self, shape: Sequence[int], *, constant: float = 0.6, scale: float = 1.0) -> Array:
        """Add a new operand of a shape, of a type that the schema allows."""
        dtype = self.bind()
        array = draw_array(self.random, self.numbers, dtype, shape)
        if scale != 1.0:
            array = (array * scale).astype(dtype)
        return self.operand(array, constant=constant)

    def positive(self, shape: Sequence[int], low: float = 0.2, high: float = 2.0) -> Array:
        """Add a new operand whose elements are positive, such as a variance."""
        dtype = self.bind()
        drawn = self.numbers.uniform(low, high, tuple(shape))
        return self.operand(np.asarray(drawn).astype(dtype))

    def ints(self, values: Any, *, constant: float = 0.9) -> Array:
        """Add whole numbers, such as axes, of a type that the schema allows."""
        types = self.types()
        name = "int64" if "int64" in types else self.random.choice(types)
        return self.operand(np.asarray(values).astype(TYPES[name]), constant=constant)

    def scalar(self, value: Any, *, constant: float = 0.8) -> Array:
        """Add one element of the type that is bound."""
        return self.operand(np.asarray(value).astype(self.bind()), constant=constant)

    def none(self) -> None:
        """Leave an optional operand out."""
        self.inputs.append("")
        self.arrays.append(None)

    def _add(self, name: str, array: Array) -> Array:
        self.inputs.append(name)
        self.arrays.append(array)
        return array

    # Attributes.

    def set(self, name: str, value: Any) -> None:
        """Set an attribute, if this version of the operator has it."""
        if name in self.schema.attributes:
            self.attributes[name] = value

    def maybe(self, name: str, *values: Any) -> None:
        """Set an attribute to one of some values, or leave its default."""
        if self.chance(0.65):
            self.set(name, self.pick(*values))

    def axes(self, values: Sequence[int]) -> None:
        """Add axes as this version of the operator has them: an attribute or an operand."""
        if "axes" in self.schema.attributes:
            self.set("axes", list(values))
        else:
            self.ints(values)

    def node(self, names: Sequence[str]) -> onnx.NodeProto:
        """Return the node; operands that are left out at the end are no operands."""
        inputs = list(self.inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        return onnx.helper.make_node(
            self.schema.name, inputs, list(names), domain=self.schema.domain, **self.attributes
        )
