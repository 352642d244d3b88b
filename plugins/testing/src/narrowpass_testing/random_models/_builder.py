"""Random models: recipes draw nodes with their operands, and a builder joins them to a graph."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.defs import OpSchema

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._elements import (
    LARGEST,
    TYPES,
    WEIGHTS,
    Array,
    allowed,
    draw_array,
    draw_shape,
)
from narrowpass_testing.random_models._nodes import read_by
from narrowpass_testing.random_models._oracles import run_nodes
from narrowpass_testing.random_models._traits import DISCONTINUOUS, EXACT


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


Recipe = Callable[["Draft"], None]
"""Adds operands and attributes to the draft of one node, in the order of its schema."""

Key = tuple[str, str]
"""The domain and the name of an operator, or the group and the name of a block."""


@dataclass(frozen=True)
class Block:
    """Several nodes that belong together, such as a layer as exporters write it.

    Attributes:
        draw: adds the nodes to a chain.
        opset: the oldest operator set of ONNX in which it can be written.
        alone: whether no other node stands around it: what it quantizes has the slack of one
            step, which another node could spread.
    """

    draw: Callable[[Chain], None]
    opset: int = 8
    alone: bool = False


class Recipes:
    """Recipes of operators and blocks, by which random models are drawn.

    `RECIPES` has those of ONNX. A backend's tests add their own to a copy, or to a table that they
    join with it::

        mine = Recipes()

        @mine.block("layers", "ConvRelu")
        def conv_relu(c: Chain) -> None:
            x = c.take(4, 4)
            y = c.add("Conv", [x, c.weight((8, c.shape(x)[1], 3, 3))], pads=[1, 1, 1, 1])
            c.add("Relu", [y])

        cases = random_models(0, 200, recipes=RECIPES | mine)

    Attributes:
        by_operator: recipes by domain and name of the operator.
        blocks: by group and name; a group is no domain of operators.
    """

    def __init__(self) -> None:
        self.by_operator: dict[Key, Recipe] = {}
        self.blocks: dict[Key, Block] = {}

    def operators(self, names: str, domain: str = "") -> Callable[[Recipe], Recipe]:
        """Return a decorator that enters a recipe for operators, whose names are in one text."""

        def enter(recipe: Recipe) -> Recipe:
            for name in names.split():
                self.by_operator[domain, name] = recipe
            return recipe

        return enter

    def block(
        self, group: str, name: str, *, opset: int = 8, alone: bool = False
    ) -> Callable[[Callable[[Chain], None]], Callable[[Chain], None]]:
        """Return a decorator that enters a function for a block; see `Block`."""

        def enter(draw: Callable[[Chain], None]) -> Callable[[Chain], None]:
            self.blocks[group, name] = Block(draw, opset, alone)
            return draw

        return enter

    def keys(self) -> tuple[Key, ...]:
        """Return the keys that seeds select: operators in order of their names, then blocks."""
        return (*sorted(self.by_operator), *sorted(self.blocks))

    def is_alone(self, key: Key) -> bool:
        """Report whether a key is that of a block around which nothing stands."""
        return key in self.blocks and self.blocks[key].alone

    def only(self, names: Iterable[str]) -> Recipes:
        """Return the recipes of some operators, and the blocks of some groups.

        Raises:
            ValueError: a name that no operator and no group has.
        """
        wanted = set(names)
        found = Recipes()
        found.by_operator = {k: r for k, r in self.by_operator.items() if k[1] in wanted}
        found.blocks = {k: b for k, b in self.blocks.items() if k[0] in wanted}
        known = {name for _, name in found.by_operator} | {group for group, _ in found.blocks}
        if wanted - known:
            raise ValueError(f"no recipes for {', '.join(sorted(wanted - known))}")
        return found

    def __or__(self, other: Any) -> Recipes:
        """Return the recipes of both; those of the second one where both have one."""
        if not isinstance(other, Recipes):
            return NotImplemented
        found = Recipes()
        found.by_operator = self.by_operator | other.by_operator
        found.blocks = self.blocks | other.blocks
        return found


OPSETS = {
    "": range(8, onnx.defs.onnx_opset_version() + 1),
    "ai.onnx.ml": range(1, 6),
    "com.microsoft": range(1, 2),
}
"""Versions of the domains that are drawn, the first from the oldest that both oracles know."""


@cache
def schema_of(name: str, domain: str, opset: int) -> OpSchema | None:
    """Return an operator's schema in an operator set; None before it was added."""
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


STEPS = (0, 0, 0, 1, 2, 3, 5)
"""How many nodes stand around the first one, as often as they are here."""
AROUND_BLOCKS = (0, 1, 2, 3, 5, 8, 12)
"""The same where the first one is a block: layouts and fusions meet in long graphs."""


@dataclass(frozen=True)
class Style:
    """What models are drawn like.

    Attributes:
        recipes: of what is drawn.
        types: names of element types that are preferred where a schema leaves the choice, such as
            ``float``; empty for all.
        zeros: whether some models have sizes of 0.
    """

    recipes: Recipes
    types: tuple[str, ...] = ()
    zeros: bool = True

    def prefers(self, names: Sequence[str]) -> Sequence[str]:
        """Return the preferred ones among names of types; all of them where none is."""
        return [name for name in names if name in self.types] or names


@dataclass
class Builder:
    """A graph, or with `parent` the body of a node of one, which also reads its values.

    Attributes:
        random: of all choices.
        numbers: of all elements.
        style: what is drawn.
        first: domain and name of the operator that the versions of the domains must have.
        parent: the graph around.
        values: elements of all that a node may read, by name.
        exact: names of values that do not depend on the order of computation.
        last: names of integers too large for float32, which no further node reads.
        slack: absolute error that a last rounding to a quantum may bring.
        least: the oldest operator set of the default domain.
        hidden: names of values that become no outputs.
    """

    random: random.Random
    numbers: np.random.Generator
    style: Style
    first: Key = ("", "Identity")
    parent: Builder | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    last: set[str] = field(default_factory=set)
    slack: float = 0.0
    least: int = 0
    hidden: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        outer = self.parent
        if outer is None:
            self.versions = {d: self._version(d) for d in OPSETS}
            self.zeros = self.chance(0.15) and self.style.zeros
            self.largest = LARGEST * self.random.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 10))
            self.count = [0]
        else:
            self.versions, self.zeros, self.largest = outer.versions, outer.zeros, outer.largest
            self.count = outer.count
            self.values, self.exact = dict(outer.values), set(outer.exact)

    def inner(self) -> Builder:
        """Return a builder of a body, which reads the values of this graph."""
        return Builder(self.random, self.numbers, self.style, parent=self)

    def _version(self, domain: str) -> int:
        """Draw a version of a domain in which the operator exists."""
        fitting = [
            version
            for version in OPSETS[domain]
            if (domain != self.first[0] or schema_of(self.first[1], domain, version))
            and (domain or version >= self.least)
        ]
        # Both oracles know the newer half best, and most models are of it.
        return self.random.choice(fitting + fitting[len(fitting) // 2 :])

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.versions[""]

    def chance(self, share: float) -> bool:
        """Return True that often; what Hypothesis shrinks to is False."""
        return self.random.random() >= 1 - share

    def name(self, prefix: str) -> str:
        """Return a name that no other value has."""
        self.count[0] += 1
        return f"{prefix}{self.count[0]}"

    def store(self, array: Array, constant: float) -> str:
        """Add an initializer, a Constant or, with the rest of the probability, an input.

        Returns:
            Its name.
        """
        if not array.size and not self.style.zeros and array.dtype.kind != "i":
            raise UnfitError
        inner = self.parent is not None
        name = self.name("w")
        if not inner and self.random.random() >= constant:
            name = self.name("x")
            self.feeds[name] = array
        elif self.chance(0.06):
            value = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=value))
        else:
            self.weights[name] = array
        self.values[name] = array
        self.exact.add(name)
        return name

    def choose(self, operator: str, fits: Callable[[Array], bool]) -> str | None:
        """Return a value that fits, the newest more often; None for a new one."""
        exact = operator in DISCONTINUOUS
        found = [
            name
            for name, value in self.values.items()
            if isinstance(value, np.ndarray)
            and name not in self.last
            and (not exact or name in self.exact or value.dtype.kind in "iub")
            and fits(value)
        ]
        if not found or self.chance(0.15):
            return None
        # Chains are where layouts meet and fusions begin.
        results = [name for name in found if not self.is_given(name)]
        return self.random.choice(results[-1:] * 4 + results[-3:] + found)

    def imports(self, domain: str) -> int:
        """Return the version of a domain."""
        return self.versions.get(domain, 1)

    def step(self, key: Key) -> bool:
        """Try to add a node of an operator, or a block; report whether it is valid."""
        before, count = set(self.values), len(self.nodes)
        try:
            block = self.style.recipes.blocks.get(key)
            if block is not None:
                if self.opset < block.opset:
                    raise UnfitError
                block.draw(Chain(self, alone=block.alone))
                return True
            return self._operator(key)
        except UnfitError:
            if key in self.style.recipes.blocks:
                for node in self.nodes[count:]:
                    for name in node.output:
                        self.values.pop(name, None)
                del self.nodes[count:]
            return False
        finally:
            self._forget(set(self.values) - before)

    def _operator(self, key: Key) -> bool:
        domain, name = key
        schema = schema_of(name, domain, self.imports(domain))
        if schema is None or key not in self.style.recipes.by_operator:
            return False
        draft = Draft(self, schema)
        self.style.recipes.by_operator[key](draft)
        return self.add(draft) is not None

    def _forget(self, names: set[str]) -> None:
        """Remove operands that were drawn and that no node reads."""
        used = {name for node in self.nodes for name in read_by(node)}
        gone = {name for name in names - used if self.is_given(name)}
        self.nodes = [
            node
            for node in self.nodes
            if node.op_type != "Constant" or not gone.intersection(node.output)
        ]
        for name in gone:
            self.weights.pop(name, None)
            self.feeds.pop(name, None)
            del self.values[name]

    def is_given(self, name: str) -> bool:
        """Report whether a value is an operand that was drawn, not a result."""
        return name.startswith(("w", "x"))

    def add(self, draft: Draft) -> list[str] | None:
        """Add a drafted node if an oracle runs it."""
        names = [self.name("v") for _ in range(draft.outputs)]
        node = draft.node(names)
        read = read_by(node)
        if any(name not in self.values for name in read):
            return None
        results = run_nodes([node], {n: self.values[n] for n in read}, names, self.opset_imports())
        if results is None:
            return None
        exact = all(
            n in self.exact or self.values[n].dtype.kind in "iub"
            for n in read
            if isinstance(self.values[n], np.ndarray)
        )
        if node.op_type in DISCONTINUOUS and not exact:
            return None
        if not all(self.takes(result) for result in results):
            return None
        self.nodes.append(node)
        for name, result in zip(names, results, strict=True):
            self.values[name] = result
            if not _is_small(result):
                self.last.add(name)
            if exact and (node.op_type in EXACT or _is_whole(result)):
                self.exact.add(name)
        return names

    def takes(self, result: Any) -> bool:
        """Report whether a result may stand in a model: see `ordinary`."""
        empty = isinstance(result, np.ndarray) and not result.size
        return ordinary(result) and (self.style.zeros or not empty)

    def opset_imports(self) -> list[onnx.OperatorSetIdProto]:
        """Return the versions of all domains that nodes may be of."""
        return [helper.make_opsetid(domain, version) for domain, version in self.versions.items()]

    def body(
        self, inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[onnx.NodeProto] = ()
    ) -> onnx.GraphProto:
        """Return the graph as that of an attribute."""
        infos = [_info(name, self.values[name]) for name in inputs]
        results = [_info(name, self.values[name], known=False) for name in outputs]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        return helper.make_graph([*self.nodes, *nodes], self.name("g"), infos, results, weights)

    def case(self, name: str) -> Case | None:
        """Return the finished model; None where nothing can be an output."""
        read = {name for node in self.nodes for name in read_by(node)}
        own = [name for node in self.nodes for name in node.output if name in self.values]
        own = [n for n in own if not self.is_given(n) and isinstance(self.values[n], np.ndarray)]
        outputs = [n for n in own if n not in read or self.chance(0.15)]
        outputs = [n for n in outputs if n not in self.hidden]
        if len(outputs) > 1 and self.chance(0.05):
            outputs.remove(self.random.choice(outputs))  # what computes it is used by nothing
        if not outputs:
            return None
        sizes: dict[str, int] = {}
        if self.chance(0.4):
            drawn = sorted({s for a in self.feeds.values() for s in a.shape})
            sizes = dict(zip("NM", drawn, strict=False))
        infos = [
            _info(name, array, {size: symbol for symbol, size in sizes.items()})
            for name, array in self.feeds.items()
        ]
        if self.weights and self.chance(0.05):
            given = self.random.choice(list(self.weights))  # an input with a default
            infos.append(_info(given, self.weights[given]))
        results = [_info(name, self.values[name], known=False) for name in outputs]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, name, infos, results, weights)
        used = {node.domain for node in self.nodes} | {""}
        imports = [i for i in self.opset_imports() if i.domain in used]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return Case(model, dict(self.feeds), sizes, self.slack)


def ordinary(value: Any) -> bool:
    """Report whether elements are numbers of a size that leaves room for rounding errors."""
    if not isinstance(value, np.ndarray):
        return isinstance(value, list) and all(ordinary(each) for each in value)
    if value.dtype.kind not in "fiubV" or value.size > 60_000:
        return False
    if value.dtype.kind in "iub" or not value.size:
        return True
    return bool(np.all(np.abs(value.astype(np.float64)) < 3e4))


def _is_small(value: Any) -> bool:
    whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size
    return not whole or float(np.abs(value.astype(np.float64)).max()) <= 2**24


def _is_whole(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iub"


def _info(
    name: str, value: Any, symbols: dict[int, str] | None = None, *, known: bool = True
) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else 1
        return helper.make_tensor_sequence_value_info(name, kind, None)
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    dims: list[Any] = [(symbols or {}).get(s, s) if known else None for s in value.shape]
    return helper.make_tensor_value_info(name, kind, dims)


def drawn_case(
    style: Style,
    key: Key,
    choice: random.Random,
    numbers: np.random.Generator,
    steps: Sequence[int] = (),
    name: str = "drawn",
) -> Case | None:
    """Draw a model around a node or a block; None where the draw came to nothing.

    Args:
        style: what is drawn.
        key: of the node or block that the model must have.
        choice: of all choices.
        numbers: of all elements.
        steps: how many others stand around it, as often as they are here; by default few.
        name: of the graph.
    """
    block = style.recipes.blocks.get(key)
    if block is None:
        builder = Builder(choice, numbers, style, key)
    else:
        builder = Builder(choice, numbers, style, least=block.opset)
    if block is not None and block.alone:
        builder.zeros = False
        return builder.case(name) if builder.step(key) else None
    more = choice.choice(tuple(steps) or (STEPS if block is None else AROUND_BLOCKS))
    others = [each for each in style.recipes.keys() if not style.recipes.is_alone(each)]  # noqa: SIM118
    first = choice.randint(0, more)
    found = False
    for index in range(more + 1):
        for _ in range(6 if index == first else 2):
            if builder.step(key if index == first else choice.choice(others)):
                found = found or index == first
                break
    return builder.case(name) if found else None
