"""Where a model's values change their type: a minimum cut over its type variables.

A variable stands for the inputs and outputs of a node that must have one type (by ONNX's schema),
for a value that a loop carries, for an output of an If, or for what all calls of a function have in
common. It is narrow, on the side of the source, or wide. A value costs one cast where its producer
is wide and some reader narrow, and one where it is the other way round, however many readers there
are; a constant costs its size twice where a reader is wide, in the file and in each run. Of as many
bytes, fewer casts are cheaper. Green nodes are narrow, red ones wide, and all others go where that
is cheapest; if it is the same, they are narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass import Color
from narrowpass_fp16.coloring.constants import stored_value
from narrowpass_fp16.placement.min_cut import INFINITE, SINK, SOURCE, Network
from narrowpass_fp16.schemas import can_hold, is_float, slots
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import Opsets, subgraphs

WIDE = SINK
_CAST, _NODE = 1 << 16, 1
"""What counts less than a byte: that there is a cast; that what had better be wide is narrow."""
_BYTE = _CAST << 16
_ROUNDED = INFINITE >> 24
"""More than all casts together: that something is rounded which must not be."""
_LOOP = 16
"""How many times as much as another a cast within a loop counts, for each loop around it."""


@dataclass
class Uses:
    """The producer and the users of a value.

    Attributes:
        producer: the variable of its producer; None for a constant, which is stored as needed.
        readers: for each variable, who reads it so: a node and the index of its input, or a graph
            and the index of its output.
        depth: how many loops it is computed in.
    """

    producer: int | None
    readers: dict[int, list[tuple[ir.Node | ir.Graph, int]]] = field(default_factory=dict)
    depth: int = 0


@dataclass
class Tied:
    """What has one type since a subgraph stands between.

    Attributes:
        given: indices of the node's inputs.
        results: graphs, and indices of their outputs.
        outputs: outputs of the node.
        formals: inputs of the subgraph.
    """

    given: list[int] = field(default_factory=list)
    results: list[tuple[ir.Graph, int]] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    formals: list[ir.Value] = field(default_factory=list)


class Placement:
    """The type variables of a model and the cheapest way to choose them.

    Args:
        model: with types and shapes as far as they are known.
        dtype: the narrow type.
        color: returns the colour of a node.
        keeps: names of graph inputs and outputs whose type stays; None for all.
        wide: returns whether a value stays wide at the border of a subgraph or function.
        follows: Casts to floats that may be narrow only where another Cast reads narrow.
        better_wide: nodes that are narrow only where that spares a cast.
        by_bytes: whether a cast counts as many bytes as it moves, or one.
    """

    def __init__(
        self,
        model: ir.Model,
        dtype: ir.DataType,
        color: Callable[[ir.Node], Color],
        keeps: Iterable[str] | None,
        *,
        wide: Callable[[ir.Value], bool] = lambda _: False,
        follows: Mapping[ir.Node, ir.Node] | None = None,
        better_wide: Set[ir.Node] = frozenset(),
        by_bytes: bool = True,
    ) -> None:
        self._model, self._dtype, self._color = model, dtype, color
        self._keeps = None if keeps is None else set(keeps)
        self._by_bytes = by_bytes
        self._wide = wide
        self._follows = follows or {}
        self._better_wide = better_wide
        self._kept: list[tuple[ir.Value, int]] = []
        self._network = Network()
        self._fixed: dict[int, Color] = {}
        self.uses: dict[ir.Value, Uses] = {}
        self.variables: dict[tuple[ir.Node, str], int] = {}
        self._narrow: list[bool] = []
        self._nodes: set[ir.Node] = set()
        self._opsets = Opsets(model)
        self._functions: dict[tuple[ir.OperatorIdentifier, str], int] = {}
        self._calls: dict[ir.Node, set[int]] = {}
        self._entered: set[ir.OperatorIdentifier] = set()
        self._add_graph(model.graph, 0)
        for value in model.graph.inputs:
            self._add_value(value, WIDE if self._keeps_type(value) else self._network.add_node())
        for index, value in enumerate(model.graph.outputs):
            # Of one that may change, the type is that of its producer.
            if self._keeps_type(value) and is_float(value):
                self._read(value, WIDE, model.graph, index)

    def solve(self) -> None:
        """Choose."""
        for value, uses in self.uses.items():
            producer = uses.producer
            if not uses.readers:
                continue
            if producer is None:
                self._add_constant(value, uses)
                continue
            price = self._price(value, uses.depth)
            up, down = self._network.add_node(), self._network.add_node()
            if producer != SINK:
                self._network.add_edge(producer, up, price)
            self._network.add_edge(down, producer, price)
            for reader in uses.readers:
                self._network.add_edge(up, reader, INFINITE)
                if reader != SINK:
                    self._network.add_edge(reader, down, INFINITE)
        self._keep_exact()
        for (node, _), variable in self.variables.items():
            if node in self._better_wide:
                self._network.add_edge(variable, SINK, _NODE)
        for variable, color in self._fixed.items():
            if color is Color.GREEN:
                self._network.add_edge(SOURCE, variable, INFINITE)
            elif color is Color.RED:
                self._network.add_edge(variable, SINK, INFINITE)
        self._narrow = self._network.cut()
        self._nodes = {
            node for (node, _), variable in self.variables.items() if self._narrow[variable]
        }
        for value, uses in self.uses.items():
            constant = value.producer() if uses.producer is None else None
            if constant is not None and any(self._narrow[reader] for reader in uses.readers):
                self._nodes.add(constant)
        for node, variables in self._calls.items():
            if any(self._narrow[variable] for variable in variables):
                self._nodes.add(node)

    def _add_constant(self, value: ir.Value, uses: Uses) -> None:
        """Let a constant cost its size where a reader is wide: in the file, and in each run."""
        if not self._by_bytes:
            return
        up = self._network.add_node()
        self._network.add_edge(SOURCE, up, 2 * self._price(value, 0))
        for reader in uses.readers:
            self._network.add_edge(up, reader, INFINITE)

    def _keep_exact(self) -> None:
        """Let Casts read a narrow value only where there is one: none is rounded for them."""
        for value, reader in self._kept:
            producer = self.uses[value].producer
            self._network.add_edge(reader, SINK if producer is None else producer, _ROUNDED)
        for node, first in self._follows.items():
            result, source = self.variables[node, "T2"], self.variables[first, "T1"]
            self._network.add_edge(result, source, _ROUNDED)
            for reader in self.uses[node.outputs[0]].readers:
                if reader != SINK:
                    self._network.add_edge(reader, result, _ROUNDED)

    def narrow(self, variable: int | None) -> bool:
        """Return whether a variable is narrow."""
        return variable is not None and self._narrow[variable]

    def is_narrow(self, node: ir.Node) -> bool:
        """Return whether any type of a node is narrow."""
        return node in self._nodes

    def _keeps_type(self, value: ir.Value) -> bool:
        return self._keeps is None or value.name in self._keeps

    def _add_graph(self, graph: ir.Graph, depth: int) -> None:
        for value in graph.initializers.values():
            if is_float(value) and not value.is_graph_input():
                self._add_value(value, None, depth)
        for node in graph:
            self._add_node(node, depth)

    def _add_node(self, node: ir.Node, depth: int) -> None:
        function = self._model.functions.get(node.op_identifier())
        if function is not None and self._opsets.enters(function):
            self._add_call(node, function, depth)
            return
        graphs = {
            name: attribute.as_graph()
            for name, attribute in node.attributes.items()
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH
        }
        if not node.domain and node.op_type == "If":
            self._add_if(node, graphs, depth)
            return
        if not node.domain and node.op_type == "Loop":
            self._add_loop(node, graphs["body"], depth)
            return
        if not node.domain and node.op_type == "Scan" and self._opsets.version(node) >= 9:
            self._add_scan(node, graphs["body"], depth)
            return
        if graphs:
            self._add_opaque(node, graphs.values(), depth)
            return
        color = self._color(node)
        if _is_constant(node) and color is not Color.RED:
            self._add_value(node.outputs[0], None, depth)
            return
        known = slots(node, self._opsets.version(node), self._dtype)
        if known is None:
            self._add_opaque(node, (), depth)
            return
        found = list(known)
        # A value of unknown type may be float32: what must be of its type stays so. An output
        # that is left out has neither a name nor a type.
        unknown = {s.parameter for s in found if s.value.dtype is None and s.value.name}
        for slot in found:
            if not is_float(slot.value):
                continue
            variable = WIDE
            if slot.parameter and slot.parameter not in unknown and color is not Color.RED:
                variable = self._variable(node, slot.parameter)
                self._fixed[variable] = color
            if slot.output:
                self._add_value(slot.value, variable, depth)
                continue
            self._read(slot.value, variable, node, slot.index)
            if variable != WIDE and node.op_type == "Cast" and not is_float(node.outputs[0]):
                self._kept.append((slot.value, variable))

    def _add_opaque(self, node: ir.Node, graphs: Iterable[ir.Graph], depth: int) -> None:
        """Leave a node, and all in it, as it is."""
        for index, value in enumerate(node.inputs):
            if value is not None and is_float(value):
                self._read(value, WIDE, node, index)
        for value in node.outputs:
            if is_float(value):
                self._add_value(value, WIDE, depth)
        for graph in graphs:
            for value in (*graph.inputs, *graph.initializers.values()):
                if is_float(value):
                    self._add_value(value, WIDE, depth)
            for inner in graph:
                called = self._model.functions.get(inner.op_identifier())
                if called is not None and self._opsets.enters(called):
                    self._add_call(inner, called, depth)
                else:
                    self._add_opaque(inner, subgraphs(inner), depth)
            for index, value in enumerate(graph.outputs):
                if is_float(value):
                    self._read(value, WIDE, graph, index)

    def _add_if(self, node: ir.Node, graphs: dict[str, ir.Graph], depth: int) -> None:
        for graph in graphs.values():
            self._add_graph(graph, depth)
        for index, value in enumerate(node.outputs):
            results = [(graph, index) for graph in graphs.values()]
            self._tie(node, f"output {index}", Tied(results=results, outputs=[value]), depth)

    def _add_loop(self, node: ir.Node, body: ir.Graph, depth: int) -> None:
        self._add_graph(body, depth + 1)
        carried = len(node.inputs) - 2
        for index in range(carried):
            tied = Tied(
                given=[2 + index],
                results=[(body, 1 + index)],
                outputs=list(node.outputs[index : index + 1]),
                formals=[body.inputs[2 + index]],
            )
            self._tie(node, f"carried {index}", tied, depth)
        for index, value in enumerate(node.outputs[carried:]):
            tied = Tied(results=[(body, 1 + carried + index)], outputs=[value])
            self._tie(node, f"scan {index}", tied, depth)

    def _add_scan(self, node: ir.Node, body: ir.Graph, depth: int) -> None:
        self._add_graph(body, depth + 1)
        scanned = node.attributes.get_int("num_scan_inputs", 0)
        states = len(node.inputs) - scanned
        for index, formal in enumerate(body.inputs):
            tied = Tied(given=[index], formals=[formal])
            if index < states:
                tied.results = [(body, index)]
                tied.outputs = list(node.outputs[index : index + 1])
            self._tie(node, f"input {index}", tied, depth)
        for index, value in enumerate(node.outputs[states:]):
            tied = Tied(results=[(body, states + index)], outputs=[value])
            self._tie(node, f"scan {index}", tied, depth)

    def _add_call(self, node: ir.Node, function: ir.Function, depth: int) -> None:
        """Let the inputs of all calls of a function have the type of its own, and the outputs."""
        key = function.identifier()
        own = self._calls.setdefault(node, set())

        def variable(name: str) -> int:
            if (key, name) not in self._functions:
                self._functions[key, name] = self._network.add_node()
            own.add(self._functions[key, name])
            return self._functions[key, name]

        first = key not in self._entered
        self._entered.add(key)
        if first:
            for index, formal in enumerate(function.inputs):
                tied = self._ties(formal)
                self._add_value(formal, variable(f"input {index}") if tied else WIDE, depth)
            self._add_graph(function.graph, depth)
            for index, result in enumerate(function.outputs):
                if is_float(result):
                    reader = variable(f"output {index}") if self._ties(result) else WIDE
                    self._read(result, reader, function.graph, index)
        # A formal without a type is of several types in several calls: it changes in none.
        for index, value in enumerate(node.inputs):
            if value is not None and is_float(value):
                same = index < len(function.inputs) and self._ties(function.inputs[index])
                reader = variable(f"input {index}") if same else WIDE
                self._read(value, reader, node, index)
                if same and self._wide(value):
                    self._fixed[reader] = Color.RED
        for index, value in enumerate(node.outputs):
            if is_float(value):
                same = index < len(function.outputs) and self._ties(function.outputs[index])
                self._add_value(value, variable(f"output {index}") if same else WIDE, depth)
        if self._color(node) is Color.RED:
            self._fixed.update(dict.fromkeys(own, Color.RED))

    def _ties(self, value: ir.Value) -> bool:
        return is_float(value) and not self._wide(value)

    def _tie(self, node: ir.Node, name: str, tied: Tied, depth: int) -> None:
        """Let what goes into a subgraph and comes out of it have one type."""
        given = [(index, node.inputs[index]) for index in tied.given]
        results = [(graph, index, graph.outputs[index]) for graph, index in tied.results]
        values = [value for _, value in given] + [value for _, _, value in results]
        values += tied.outputs + tied.formals
        # Where one of them is no float tensor, or of unknown type, none changes.
        same = all(v is not None and is_float(v) and not self._wide(v) for v in values)
        same = same and can_hold(node, self._opsets.version(node), self._dtype)
        same = same and self._color(node) is not Color.RED
        variable = self._variable(node, name) if same else WIDE
        for index, value in given:
            if value is not None and is_float(value):
                self._read(value, variable, node, index)
        for graph, index, value in results:
            if is_float(value):
                self._read(value, variable, graph, index)
        for value in tied.outputs:
            self._add_value(value, variable, depth)
        for value in tied.formals:
            self._add_value(value, variable, depth + 1)

    def _variable(self, node: ir.Node, name: str) -> int:
        key = node, name
        if key not in self.variables:
            self.variables[key] = self._network.add_node()
        return self.variables[key]

    def _add_value(self, value: ir.Value, producer: int | None, depth: int = 0) -> None:
        if not is_float(value):
            return
        known = self.uses.get(value)
        if known is None:
            self.uses[value] = Uses(producer, depth=depth)
        else:
            known.producer, known.depth = producer, depth

    def _read(self, value: ir.Value, reader: int, node: ir.Node | ir.Graph, index: int) -> None:
        uses = self.uses.setdefault(value, Uses(WIDE))
        uses.readers.setdefault(reader, []).append((node, index))

    def _price(self, value: ir.Value, depth: int) -> int:
        size = 0
        if self._by_bytes:
            dims = value.shape or ()
            size = max(1, math.prod(dim for dim in dims if isinstance(dim, int)))
        price: int = (size * _BYTE + _CAST) * _LOOP**depth
        return min(price, INFINITE >> 40)


def _is_constant(node: ir.Node) -> bool:
    """Return whether a node is a constant of float32, which each user may read in its own type."""
    if node.domain or len(node.outputs) != 1 or not is_float(node.outputs[0]):
        return False
    if node.op_type == "Constant":
        return constant_tensor(node.outputs[0]) is not None
    return stored_value(node.outputs[0]) is not None
