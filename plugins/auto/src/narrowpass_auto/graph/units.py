"""Units, the nodes whose types are chosen, and the regions and links between them.

A *unit* is a node of the main graph with a constant floating-point operand of two dimensions or
more: a matmul, a convolution, an embedding. Everything else *follows* the units around it, biases
and scales of channels, too, whatever their rank. Units that share such a constant decide together,
since it is stored once: they are one *region*. Candidates learn by name which nodes they may
rewrite, so each node gets one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_LEAST_ELEMENTS = 64
"""Smaller constants are parameters of a normalization, tables of a Resize and the like."""


_POINTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Sum", "Where"})


@dataclass(frozen=True, eq=False)
class Unit:
    """A node whose types are chosen.

    Attributes:
        index: of the unit, in the order of the graph.
        node: of the model.
        weights: its constant floating-point operands of two dimensions or more.
        before: indices of the units nearest upstream, with followers alone between.
        after: of those nearest downstream.
        from_input: whether a graph input reaches it through followers alone.
        to_output: whether it reaches a graph output so.
    """

    index: int
    node: ir.Node
    weights: tuple[ir.Value, ...]
    before: frozenset[int]
    after: frozenset[int]
    from_input: bool
    to_output: bool

    @property
    def name(self) -> str:
        """The name of its node."""
        return self.node.name or ""


@dataclass(frozen=True)
class Region:
    """Units that decide together.

    Attributes:
        units: their indices.
    """

    units: tuple[int, ...]


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is the same in each run."""
    return value is not None and constant_tensor(value) is not None


def find_units(model: ir.Model, red: Collection[ir.Node] = ()) -> list[Unit]:
    """Return the units of a model.

    Args:
        model: each of its nodes has a name.
        red: nodes that stay as they are, and are no units.
    """
    chosen: dict[ir.Node, tuple[ir.Value, ...]] = {}
    for node in model.graph:
        weights = _weights(node)
        if node not in red and weights and not any(map(_has_graph, node.attributes.values())):
            chosen[node] = weights
    indices = {node: index for index, node in enumerate(chosen)}
    upstream = _nearest(model, indices, red, forward=False)
    downstream = _nearest(model, indices, red, forward=True)
    return [
        Unit(
            index,
            node,
            chosen[node],
            frozenset(upstream[node] - {_BOUNDARY}),
            frozenset(downstream[node] - {_BOUNDARY}),
            _BOUNDARY in upstream[node],
            _BOUNDARY in downstream[node],
        )
        for node, index in indices.items()
    ]


def followers(
    model: ir.Model, units: Sequence[Unit], red: Collection[ir.Node] = ()
) -> dict[str, frozenset[int]]:
    """Return for each node that follows the units nearest to it, upstream and downstream."""
    indices = {unit.node: unit.index for unit in units}
    upstream = _nearest(model, indices, red, forward=False)
    downstream = _nearest(model, indices, red, forward=True)
    return {
        node.name or "": frozenset((upstream[node] | downstream[node]) - {_BOUNDARY})
        for node in model.graph
        if node not in indices and node not in red
    }


def find_regions(units: Sequence[Unit]) -> list[Region]:
    """Return the regions, in the order of their first units."""
    leader = list(range(len(units)))

    def find(index: int) -> int:
        while leader[index] != index:
            index = leader[index]
        return index

    readers: dict[ir.Value, int] = {}
    for unit in units:
        for weight in unit.weights:
            other = readers.setdefault(weight, unit.index)
            first, second = sorted((find(other), find(unit.index)))
            leader[second] = first
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(units)):
        members[find(index)].append(index)
    return [Region(tuple(members[first])) for first in sorted(members)]


def _weights(node: ir.Node) -> tuple[ir.Value, ...]:
    found: dict[ir.Value, None] = {}
    for value in node.inputs:
        tensor = None if value is None else constant_tensor(value)
        if value is None or tensor is None or tensor.dtype not in _WIDE:
            continue
        if value.is_graph_input():  # with a default: a run may feed another
            continue
        if tensor.size >= _LEAST_ELEMENTS and not _is_parameter(node, tensor.shape.numpy()):
            found[value] = None
    computes = any(not is_constant(value) for value in node.inputs if value is not None)
    return tuple(found) if computes else ()


def _is_parameter(node: ir.Node, shape: Sequence[int]) -> bool:
    """Return whether a constant is a bias, a scale or the like: it follows what is around it.

    Of a pointwise operator it is one where all but one of its dimensions are broadcast, such as
    ``[1, channels]``; positions, of ``[1, sequence, channels]``, are none.
    """
    pointwise = node.op_type in _POINTWISE and not node.domain
    return (sum(size > 1 for size in shape) if pointwise else len(shape)) < 2


def _has_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


_BOUNDARY = -1


def _nearest(
    model: ir.Model, units: dict[ir.Node, int], red: Collection[ir.Node], *, forward: bool
) -> dict[ir.Node, set[int]]:
    """Return for each node the units nearest to it on one side.

    `_BOUNDARY` stands for the graph's inputs or outputs, and for nodes that stay as they are.
    """
    ends = set(model.graph.outputs if forward else model.graph.inputs)
    found: dict[ir.Node, set[int]] = {}
    for node in reversed(list(model.graph)) if forward else model.graph:
        nearest: set[int] = set()
        if any(value in ends for value in (node.outputs if forward else node.inputs)):
            nearest.add(_BOUNDARY)
        for other in _neighbours(node, forward=forward):
            if other in units:
                nearest.add(units[other])
            elif other in red:
                nearest.add(_BOUNDARY)
            else:
                nearest |= found.get(other, set())
        found[node] = nearest
    return found


def _neighbours(node: ir.Node, *, forward: bool) -> list[ir.Node]:
    if forward:
        return [use.node for value in node.outputs for use in value.uses()]
    producers = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in producers if producer is not None]


def name_nodes(model: ir.Model) -> int:
    """Name each node that has no name, or one that another node has; return how many that are."""
    nodes = list(model.graph.all_nodes())
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    renamed = 0
    for node in nodes:
        if not node.name or node.name in seen:
            first = next((value.name for value in node.outputs if value.name), node.op_type)
            numbered = (f"{first}.{number}" for number in itertools.count(1))
            candidates = itertools.chain([f"{first}/{node.op_type}"], numbered)
            node.name = next(name for name in candidates if name not in taken)
            taken.add(node.name)
            renamed += 1
        seen.add(node.name)
    return renamed
