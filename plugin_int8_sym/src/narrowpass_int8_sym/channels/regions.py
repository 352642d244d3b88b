"""Regions of values that must be scaled together, and the constants that absorb the factors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.channels.operand import ChannelAxis, ChannelConstant, constant_shape
from narrowpass_int8_sym.channels.operators import (
    find_sink,
    find_sources,
    propagate_backward,
    propagate_forward,
)
from narrowpass_int8_sym.weighted_nodes import WeightedNode, weighted_node_of

_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Region:
    """Connected values between weighted nodes whose channels are divided by the same factors.

    Attributes:
        channel_axes: the values, the one that the region was grown from first.
        sources: constants that are divided.
        sinks: constants that are multiplied, each with the value that its node reads.
        channels: the number of channels.
    """

    channel_axes: tuple[ChannelAxis, ...]
    sources: tuple[ChannelConstant, ...]
    sinks: tuple[tuple[ChannelConstant, ChannelAxis], ...]
    channels: int

    def feeds(self, kinds: Collection[str]) -> bool:
        """Return whether all sinks are constants of these operators."""
        return all(sink.node.op_type in kinds for sink, _ in self.sinks)


def find_regions(model: ir.Model) -> tuple[list[Region], dict[ir.Node, str]]:
    """Find the regions that feed the weighted nodes of a model's graph.

    Returns:
        The regions, in the order of the weighted nodes, no value in two of them; and for each
        weighted node that no region feeds, the reason.
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
            found = _grow(model.graph, ChannelAxis(value, axis))
            of_value[value] = found
            if isinstance(found, Region):
                regions.append(found)
                of_value.update((channel_axis.value, found) for channel_axis in found.channel_axes)
        answer = of_value[value]
        if isinstance(answer, str):
            refused[node] = answer
    return regions, refused


def _read_along(node: ir.Node) -> int | None:
    """Return the channel axis of the first input of a weighted node."""
    rank = len(constant_shape(node.inputs[1]) or ())
    return next((axis for axis in (-1, 1 - rank) if axis < 0 and find_sink(node, 0, axis)), None)


def _grow(graph: ir.Graph, start: ChannelAxis) -> Region | str:
    """Return the region of a value, or why it cannot be divided."""
    channel_axes: dict[ir.Value, ChannelAxis] = {}
    sources: dict[tuple[ir.Node, int], ChannelConstant] = {}
    sinks: dict[tuple[ir.Node, int], tuple[ChannelConstant, ChannelAxis]] = {}
    waiting = [start]
    while waiting:
        channel_axis = waiting.pop()
        if channel_axis.value in channel_axes:
            if channel_axes[channel_axis.value] != channel_axis:
                return f"channels of {channel_axis.value.name!r} lie along two axes"
            continue
        channel_axes[channel_axis.value] = channel_axis
        above = _producers(graph, channel_axis)
        below = _consumers(graph, channel_axis)
        if isinstance(above, str) or isinstance(below, str):
            return above if isinstance(above, str) else str(below)
        waiting += above[0] + below[0]
        sources.update(((operand.node, operand.index), operand) for operand in above[1])
        sinks.update(
            ((operand.node, operand.index), (operand, channel_axis)) for operand in below[1]
        )
    operands = [*sources.values(), *(operand for operand, _ in sinks.values())]
    problem = next((text for operand in operands if (text := operand.obstacle())), "")
    if problem:
        return problem
    counts = {operand.channels for operand in operands}
    if len(counts) != 1:
        return f"channels of {start.value.name!r} are broadcast"
    return Region(
        tuple(channel_axes.values()), tuple(sources.values()), tuple(sinks.values()), *counts
    )


def _producers(
    graph: ir.Graph, channel_axis: ChannelAxis
) -> tuple[list[ChannelAxis], list[ChannelConstant]] | str:
    """Return the values and constants to divide for a value to be divided, or why it cannot be."""
    value = channel_axis.value
    node = value.producer()
    if node is None or node.graph is not graph:
        return f"{value.name!r} is an input or a constant"
    if value.is_graph_output():
        return f"{value.name!r} is an output"
    if value is not node.outputs[0]:
        return f"{value.name!r} is computed by {_label(node)}"
    own = find_sources(node, channel_axis.axis)
    if own is not None:
        return [], own
    passed = propagate_backward(node, channel_axis.axis)
    if passed is None:
        return f"{value.name!r} is computed by {_label(node)}"
    found = [
        ChannelAxis(each, axis) for index, axis in passed[0].items() if (each := node.inputs[index])
    ]
    return found, passed[1]


def _consumers(
    graph: ir.Graph, channel_axis: ChannelAxis
) -> tuple[list[ChannelAxis], list[ChannelConstant]] | str:
    """Return the values divided along with a value, and the constants multiplied, or why not."""
    on: list[ChannelAxis] = []
    sinks: list[ChannelConstant] = []
    for use in channel_axis.value.uses():
        node, index = use.node, use.idx
        if node.op_type in _OF_SHAPES and not node.domain:
            continue
        found = find_sink(node, index, channel_axis.axis) if node.graph is graph else None
        if found is not None:
            sinks.append(found)
            continue
        axis = propagate_forward(node, index, channel_axis.axis) if node.graph is graph else None
        if axis is None:
            return f"{channel_axis.value.name!r} is read by {_label(node)}"
        on.append(ChannelAxis(node.outputs[0], axis))
    return on, sinks


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
