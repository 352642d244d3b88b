"""Which values must be divided together, and which constants take the factors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.channels.axes import Place
from narrowpass_int8_sym.channels.operand import Operand, known
from narrowpass_int8_sym.channels.operators import backward, forward, sink, source
from narrowpass_int8_sym.weighted_nodes import WeightedNode, weighted_node_of

_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Region:
    """Values between products whose channels are divided together.

    Attributes:
        places: the values, the one that was asked for first.
        sources: constants that are divided.
        sinks: constants that are multiplied, and what their nodes read.
        channels: how many there are.
    """

    places: tuple[Place, ...]
    sources: tuple[Operand, ...]
    sinks: tuple[tuple[Operand, Place], ...]
    channels: int

    def feeds(self, kinds: Collection[str]) -> bool:
        """Return whether nodes of these operators alone have the constants that are multiplied."""
        return all(sink.node.op_type in kinds for sink, _ in self.sinks)


def find_regions(model: ir.Model) -> tuple[list[Region], dict[ir.Node, str]]:
    """Find the regions before the products of a model's graph.

    Returns:
        The regions, in the order of the products, no value in two of them; and for each product
        that none leads to, why not.
    """
    regions: list[Region] = []
    refused: dict[ir.Node, str] = {}
    of_value: dict[ir.Value, Region | str] = {}
    for node in model.graph:
        if not isinstance(weighted_node_of(node), WeightedNode):
            continue
        value = node.inputs[0]
        axis = None if value is None else _read_along(node)
        if value is None or axis is None:
            refused[node] = "it has no constant whose rows are channels of its input"
            continue
        if value not in of_value:
            found = _grow(model.graph, Place(value, axis))
            of_value[value] = found
            if isinstance(found, Region):
                regions.append(found)
                of_value.update((place.value, found) for place in found.places)
        answer = of_value[value]
        if isinstance(answer, str):
            refused[node] = answer
    return regions, refused


def _read_along(node: ir.Node) -> int | None:
    """Return the axis of the channels in the first input of a product."""
    rank = len(known(node.inputs[1]) or ())
    return next((axis for axis in (-1, 1 - rank) if axis < 0 and sink(node, 0, axis)), None)


def _grow(graph: ir.Graph, start: Place) -> Region | str:
    """Return the region that a value belongs to, or why it cannot be divided."""
    places: dict[ir.Value, Place] = {}
    sources: dict[tuple[ir.Node, int], Operand] = {}
    sinks: dict[tuple[ir.Node, int], tuple[Operand, Place]] = {}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place.value in places:
            if places[place.value] != place:
                return f"channels of {place.value.name!r} lie along two axes"
            continue
        places[place.value] = place
        made = _makers(graph, place)
        read = _readers(graph, place)
        if isinstance(made, str) or isinstance(read, str):
            return made if isinstance(made, str) else str(read)
        waiting += made[0] + read[0]
        sources.update(((operand.node, operand.index), operand) for operand in made[1])
        sinks.update(((operand.node, operand.index), (operand, place)) for operand in read[1])
    operands = [*sources.values(), *(operand for operand, _ in sinks.values())]
    problem = next((text for operand in operands if (text := operand.obstacle())), "")
    if problem:
        return problem
    counts = {operand.channels for operand in operands}
    if len(counts) != 1:
        return f"channels of {start.value.name!r} are broadcast"
    return Region(tuple(places.values()), tuple(sources.values()), tuple(sinks.values()), *counts)


def _makers(graph: ir.Graph, place: Place) -> tuple[list[Place], list[Operand]] | str:
    """Return what must be divided for a value to be, or why it cannot."""
    value = place.value
    node = value.producer()
    if node is None or node.graph is not graph:
        return f"{value.name!r} is given"
    if value.is_graph_output():
        return f"{value.name!r} is an output"
    if value is not node.outputs[0]:
        return f"{value.name!r} is made by {_label(node)}"
    own = source(node, place.axis)
    if own is not None:
        return [], own
    passed = backward(node, place.axis)
    if passed is None:
        return f"{value.name!r} is made by {_label(node)}"
    found = [Place(each, axis) for index, axis in passed[0].items() if (each := node.inputs[index])]
    return found, passed[1]


def _readers(graph: ir.Graph, place: Place) -> tuple[list[Place], list[Operand]] | str:
    """Return what is divided along with a value, and what is multiplied, or why it cannot be."""
    on: list[Place] = []
    sinks: list[Operand] = []
    for use in place.value.uses():
        node, index = use.node, use.idx
        if node.op_type in _OF_SHAPES and not node.domain:
            continue
        found = sink(node, index, place.axis) if node.graph is graph else None
        if found is not None:
            sinks.append(found)
            continue
        axis = forward(node, index, place.axis) if node.graph is graph else None
        if axis is None:
            return f"{place.value.name!r} is read by {_label(node)}"
        on.append(Place(node.outputs[0], axis))
    return on, sinks


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
