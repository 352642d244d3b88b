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

from differential import recipes
from differential.cases import Case
from differential.draft import Draft, UnfitError
from differential.elements import Array
from differential.oracles import run_nodes
from differential.recipes.chain import Chain
from differential.traits import DISCONTINUOUS, EXACT
from differential.upstream import read_by

OPSETS = {"": range(8, onnx.defs.onnx_opset_version() + 1), "ai.onnx.ml": range(1, 6)}
"""Versions of the domains that are drawn, the first from the oldest that both oracles know."""


@cache
def schema_of(name: str, domain: str, opset: int) -> OpSchema | None:
    """Return an operator's schema in an operator set; None before it was added."""
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@dataclass
class Builder:
    """A graph, or with `parent` the body of a node of one, which also reads its values.

    Attributes:
        seed: fixes all draws.
        operator: domain and name of the one that the versions of the domains must have.
        parent: the graph around.
        values: elements of all that a node may read, by name.
        exact: names of values that do not depend on the order of computation.
        last: names of integers too large for float32, which no further node reads.
        slack: absolute error that a last rounding to a quantum may bring.
        zeros: whether shapes with a size of 0 are drawn.
        least: the oldest operator set of the default domain.
        hidden: names of values that become no outputs.
    """

    seed: int
    operator: tuple[str, str] = ("", "Identity")
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
            self.random = random.Random(self.seed)
            self.numbers = np.random.default_rng(self.seed)
            self.versions = {d: self._version(d) for d in OPSETS}
            self.zeros = self.random.random() < 0.15
            self.count = [0]
        else:
            self.random, self.numbers = outer.random, outer.numbers
            self.versions, self.zeros = outer.versions, outer.zeros
            self.count = outer.count
            self.values, self.exact = dict(outer.values), set(outer.exact)

    def _version(self, domain: str) -> int:
        """Draw a version of a domain in which the operator exists."""
        fitting = [
            version
            for version in OPSETS[domain]
            if (domain != self.operator[0] or schema_of(self.operator[1], domain, version))
            and (domain or version >= self.least)
        ]
        # Both oracles know the newer half best, and most models are of it.
        return self.random.choice(fitting + fitting[len(fitting) // 2 :])

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.versions[""]

    def name(self, prefix: str) -> str:
        """Return a name that no other value has."""
        self.count[0] += 1
        return f"{prefix}{self.count[0]}"

    def store(self, array: Array, constant: float) -> str:
        """Add an initializer or, with the rest of the probability, an input; return its name."""
        inner = self.parent is not None
        if inner or self.random.random() < constant:
            name = self.name("w")
            self.weights[name] = array
        else:
            name = self.name("x")
            self.feeds[name] = array
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
        if not found or self.random.random() < 0.15:
            return None
        return self.random.choice(found[-1:] * 4 + found)

    def imports(self, domain: str) -> int:
        """Return the version of a domain."""
        return self.versions.get(domain, 1)

    def step(self, operator: str, domain: str = "") -> list[str] | None:
        """Try to add a node of an operator; return its outputs, None where it is not valid."""
        schema = schema_of(operator, domain, self.imports(domain))
        if schema is None:
            return None
        draft = Draft(self, schema)
        before = set(self.values)
        try:
            recipes.RECIPES[domain, operator](draft)
            return self.add(draft)
        except UnfitError:
            return None
        finally:
            used = {name for node in self.nodes for name in read_by(node)}
            for name in set(self.values) - before - used:
                if name in self.weights or name in self.feeds:
                    self.weights.pop(name, None)
                    self.feeds.pop(name, None)
                    del self.values[name]

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
        if not all(ordinary(result) for result in results):
            return None
        self.nodes.append(node)
        for name, result in zip(names, results, strict=True):
            self.values[name] = result
            if not _is_small(result):
                self.last.add(name)
            if exact and (node.op_type in EXACT or _is_whole(result)):
                self.exact.add(name)
        return names

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

    def case(self) -> Case | None:
        """Return the finished model; None where nothing can be an output."""
        read = {name for node in self.nodes for name in read_by(node)}
        own = [name for node in self.nodes for name in node.output if name in self.values]
        outputs = [n for n in own if n not in read or self.random.random() < 0.15]
        outputs = [n for n in outputs if n not in self.hidden]
        outputs = [n for n in outputs if isinstance(self.values[n], np.ndarray)]
        if not outputs:
            return None
        sizes: dict[str, int] = {}
        if self.random.random() < 0.4:
            drawn = sorted({s for a in self.feeds.values() for s in a.shape})
            sizes = dict(zip("NM", drawn, strict=False))
        infos = [
            _info(name, array, {size: symbol for symbol, size in sizes.items()})
            for name, array in self.feeds.items()
        ]
        results = [_info(name, self.values[name], known=False) for name in outputs]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, f"seed_{self.seed}", infos, results, weights)
        used = {node.domain for node in self.nodes} | {""}
        imports = [i for i in self.opset_imports() if i.domain in used or self.parent]
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


def random_case(seed: int, operators: Sequence[tuple[str, str]]) -> Case | None:
    """Return a random model of one node or of a few; None where the draw came to nothing.

    Args:
        seed: fixes the draw.
        operators: domain and name of those to draw from. Each case begins with the one that its
            seed selects, so that all have equally many cases.
    """
    domain, name = operators[seed % len(operators)]
    if (domain, name) in recipes.PATTERNS:
        return _pattern(seed, domain, name)
    operators = [operator for operator in operators if operator not in recipes.PATTERNS]
    builder = Builder(seed, (domain, name))
    more = builder.random.choice((0, 0, 0, 1, 2, 3, 5))
    first = builder.random.randint(0, more)
    for index in range(more + 1):
        for _ in range(6 if index == first else 2):
            chosen = (domain, name) if index == first else builder.random.choice(operators)
            if builder.step(chosen[1], chosen[0]) is not None:
                break
    if not any(node.op_type == name for node in builder.nodes):
        return None
    return builder.case()


def _pattern(seed: int, domain: str, name: str) -> Case | None:
    """Return a model of a pattern; None where the draw came to nothing."""
    builder = Builder(seed, ("", name), least=19 if domain == recipes.NARROW else 13)
    builder.zeros = False
    try:
        recipes.PATTERNS[domain, name](Chain(builder))
    except UnfitError:
        return None
    return builder.case()
