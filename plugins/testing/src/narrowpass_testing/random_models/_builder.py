"""A model that grows node by node; each value has its elements for the feeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.defs import OpSchema

from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models._chain import Chain
from narrowpass_testing.random_models._draft import Draft, UnfitError
from narrowpass_testing.random_models._elements import LARGEST, Array
from narrowpass_testing.random_models._nodes import read_by
from narrowpass_testing.random_models._oracles import run_nodes
from narrowpass_testing.random_models._recipes import Key, Recipes
from narrowpass_testing.random_models._traits import DISCONTINUOUS, EXACT

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
