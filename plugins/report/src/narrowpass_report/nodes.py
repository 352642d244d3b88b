"""Nodes and values of one graph as data, with their places."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from narrowpass_ir.subgraphs import nested_graphs, subgraphs
from narrowpass_report.layout import Edge, lay_out
from narrowpass_report.texts import Texts, dtype_name

_CAST = (46, 20)
"""Width and height of a Cast."""

_HEIGHT = 38
_END_HEIGHT = 22
"""Pixels of a node, and of an input or output of the graph."""

_TIMES = "\N{MULTIPLICATION SIGN}"


class GraphData:
    """What the page draws of one graph.

    Args:
        container: the graph, or a function's body.
        texts: gets operators and shapes.
        dtypes: gets names of element types.

    Attributes:
        nodes: of the graph.
        entries: what the page knows of each node; then of the graph's inputs, of values captured
            from outside, and of its outputs.
    """

    def __init__(self, container: ir.Graph | ir.Function, texts: Texts, dtypes: Texts) -> None:
        self._texts, self._dtypes = texts, dtypes
        self._numbers: dict[ir.Value, int] = {}
        self._values: list[list[Any]] = []
        self._sizes: list[tuple[int, int]] = []
        self._makers: dict[int, int] = {}
        self.nodes = list(container)
        self.entries: list[dict[str, Any]] = []
        for node in self.nodes:
            self._add_node(node)
        for value in container.inputs:
            if value.const_value is None:
                self._add_end("input", value)
        for value in list(self._numbers):
            if self._numbers[value] not in self._makers and not is_weight(value):
                self._add_end("captured", value)
        for value in container.outputs:
            self._add_end("output", value)

    def to_json(self) -> dict[str, Any]:
        """Return what the page draws; lists of tuples are flat."""
        edges = [
            Edge(number, self._makers[number], index)
            for index, entry in enumerate(self.entries)
            for number in dict.fromkeys([*entry.get("in", ()), *entry.get("captured", ())])
            if self._makers.get(number, index) != index
        ]
        layout = lay_out(self._sizes, edges)
        far = [edges[index] for index in layout.far]
        return {
            "count": len(self.nodes),
            "nodes": self.entries,
            "values": self._values,
            "layers": layout.layers,
            "x": layout.x,
            "sizes": [number for size in self._sizes for number in size],
            "tops": layout.tops,
            "heights": layout.heights,
            "runs": [number for run in layout.runs for number in run],
            "segments": [number for segment in layout.segments for number in segment],
            "far": [number for e in far for number in (e.source, e.target, e.value)],
        }

    def _add_node(self, node: ir.Node) -> None:
        entry: dict[str, Any] = {"name": node.name or "", "op": self._texts.add(node.op_type)}
        if node.domain:
            entry["domain"] = self._texts.add(node.domain)
        entry["in"] = [-1 if value is None else self._value(value) for value in node.inputs]
        entry["out"] = [self._value(value) for value in node.outputs]
        captured = [self._value(value) for value in _captured(node)]
        if captured:
            entry["captured"] = captured
        for number in entry["out"]:
            self._makers[number] = len(self.entries)
        self.entries.append(entry)
        if node.op_type == "Cast" and not node.domain:
            self._sizes.append(_CAST)
            return
        shape = shape_text(node.outputs[0].shape) if node.outputs else ""
        wanted = max(len(node.op_type) * 8.6, len(shape) * 6.4) + 24
        self._sizes.append((_width(wanted, 66, 176), _HEIGHT))

    def _add_end(self, kind: str, value: ir.Value) -> None:
        """Add an input, an output, or a value from outside, as a node of its own."""
        number, name = self._value(value), value.name or ""
        side = "in" if kind == "output" else "out"
        if kind != "output":
            self._makers[number] = len(self.entries)
        self.entries.append({"name": name, "kind": kind, side: [number]})
        self._sizes.append((_width(len(name) * 6.8 + 26, 56, 176), _END_HEIGHT))

    def _value(self, value: ir.Value) -> int:
        if value in self._numbers:
            return self._numbers[value]
        tensor = value.const_value if is_weight(value) else None
        dtype, shape = value.dtype, value.shape
        if tensor is not None:
            dtype, shape = tensor.dtype, ir.Shape(tuple(tensor.shape.numpy()))
        kind = self._dtypes.add(dtype_name(dtype))
        row: list[Any] = [value.name or "", kind, self._texts.add(shape_text(shape))]
        row += [] if tensor is None else [tensor.nbytes]
        self._numbers[value] = len(self._values)
        self._values.append(row)
        return self._numbers[value]


def bodies(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """Return the graphs within a node, with the names of their attributes."""
    names: dict[ir.Graph, str] = {}
    for attribute in node.attributes.values() if node.attributes else ():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            names[attribute.as_graph()] = attribute.name
    return [(names.get(graph, "body"), graph) for graph in subgraphs(node)]


def is_weight(value: ir.Value) -> bool:
    """Return whether a value is a tensor of the model."""
    return value.const_value is not None and value.producer() is None


def shape_text(shape: ir.Shape | None) -> str:
    """Return a shape as text; nothing where it is not known."""
    if shape is None:
        return ""
    sizes = [dim if isinstance(dim, int) else dim.value for dim in shape]
    return _TIMES.join("?" if size is None else str(size) for size in sizes) or "scalar"


def _captured(node: ir.Node) -> dict[ir.Value, None]:
    """Return what the subgraphs of a node read from outside of them; not what the node reads."""
    inner = [graph for body in subgraphs(node) for graph in nested_graphs(body)]
    if not inner:
        return {}
    known = {value for graph in inner for value in graph.inputs}
    known |= {value for graph in inner for n in graph for value in n.outputs}
    known |= {value for value in node.inputs if value is not None}
    read = [v for graph in inner for n in graph for v in n.inputs if v is not None]
    read += [value for graph in inner for value in graph.outputs]
    return {value: None for value in read if value not in known and not is_weight(value)}


def _width(wanted: float, least: int, most: int) -> int:
    return max(least, min(most, 2 * math.ceil(wanted / 2)))
