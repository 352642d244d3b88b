"""Tables that rows are gathered from, embeddings above all, in bytes with a scale for each row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass import Decision
from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.scales import of_magnitudes
from narrowpass_int8_sym.storage import drop_unread, initializer, unique
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_int8_sym.weights import Array, QuantizedTensor, magnitudes

FLOAT = ir.DataType.FLOAT

LEAST_ELEMENTS = 1 << 14
"""A table with fewer elements saves less than what stands in its place costs."""


def find_tables(
    graph: ir.Graph, barred: Collection[ir.Node], weighted_nodes: Iterable[WeightedNode]
) -> list[ir.Node]:
    """Give the nodes that gather rows of tables which can be in bytes, in order.

    They gather rows of constants of float32 with two dimensions. What else reads such a table reads
    it as bytes, too: it would be stored twice otherwise.

    Args:
        graph: to look in; graphs within it are left alone.
        barred: nodes that are to gather floats.
        weighted_nodes: those whose weights become int8, such as an LM head with a tied embedding.
    """
    found = {node for node in graph if node not in barred and _table(node) is not None}
    # A factor of the product is in its scales.
    read = {
        (weighted.node, weighted.index): weighted
        for weighted in weighted_nodes
        if weighted.node.attributes.get_float("alpha", 1.0) == 1.0
    }
    turned = {weighted.transpose for weighted in read.values()}

    def in_bytes(node: ir.Node, index: int) -> bool:
        if node in turned:
            return all((use.node, use.idx) in read for use in node.outputs[0].uses())
        return (node, index) in read or (index == 0 and node in found)

    return [
        node
        for node in graph
        if node in found
        and (table := _table(node)) is not None
        and all(in_bytes(use.node, use.idx) for use in table.uses())
    ]


def report_tables(nodes: Sequence[ir.Node]) -> dict[ir.Node, Decision]:
    """Give what is reported of the nodes that `find_tables` gave."""
    reason = "its table is stored in bytes; its result is float"
    return {
        node: Decision(
            node.name or node.outputs[0].name or "", node.op_type, "int8", "rule", reason
        )
        for node in nodes
    }


def _table(node: ir.Node) -> ir.Value | None:
    if not _gathers_rows(node):
        return None
    table = node.inputs[0]
    tensor = constant_tensor(table)
    if table is None or tensor is None or table.is_graph_input() or table.is_graph_output():
        return None
    small = tensor.dtype != FLOAT or len(tensor.shape) != 2 or tensor.size < LEAST_ELEMENTS
    return None if small else table


def _gathers_rows(node: ir.Node) -> bool:
    return (
        node.op_type == "Gather"
        and not node.domain
        and node.attributes.get_int("axis", 0) in (0, -2)
        and len(node.inputs) == 2
    )


@dataclass(frozen=True)
class _Table:
    """A table in bytes.

    Attributes:
        whole: int8 [rows, columns].
        scales: float32 [rows, 1], or what a product of the same table has: [columns], or [].
        of_rows: whether rows have scales of their own.
    """

    whole: ir.Value
    scales: ir.Value
    of_rows: bool


def store_tables(graph: ir.Graph, nodes: Sequence[ir.Node], taken: set[str | None]) -> int:
    """Let nodes gather bytes, and their scales, and multiply both; give how many tables there are.

    Args:
        graph: of the nodes; what its products read from bytes is not stored again.
        nodes: as `find_tables` gives them.
        taken: names that others have; those of new values are added.

    Raises:
        DataError: an element of a table is infinite or NaN.
    """
    weights = _weights(graph) if nodes else {}
    made: dict[ir.Value, _Table] = {}
    for node in nodes:
        table = node.inputs[0]
        if table is None:
            continue
        if table not in made:
            given = weights.get(id(constant_tensor(table)))
            made[table] = _stored(table, taken) if given is None else _shared(given, taken)
        _gather(node, made[table], taken)
    for table in made:
        drop_unread(table)
    return len(made)


def _weights(graph: ir.Graph) -> dict[int, ir.Node]:
    """Give the DequantizeLinear of each weight in bytes, by the identity of the float tensor."""
    found: dict[int, ir.Node] = {}
    for node in graph:
        if node.op_type == "DequantizeLinear" and not node.domain:
            tensor = constant_tensor(node.inputs[0])
            if isinstance(tensor, QuantizedTensor):
                found.setdefault(id(tensor.raw), node)
    return found


def _stored(table: ir.Value, taken: set[str | None]) -> _Table:
    """Store a table with a scale for each row."""
    tensor, producer = constant_tensor(table), table.producer()
    graph = table.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{table.name!r} is no constant of a graph")
    scales = of_magnitudes(magnitudes(tensor, 0))
    name = table.name or "table"
    whole = initializer(graph, QuantizedTensor(tensor, scales, 0, unique(f"{name}.int8", taken)))
    return _Table(whole, _column(graph, scales, f"{name}.scale", taken), of_rows=True)


def _shared(dequantize: ir.Node, taken: set[str | None]) -> _Table:
    """Give the bytes that a product reads, with its scales."""
    whole, scale = dequantize.inputs[:2]
    tensor = constant_tensor(scale)
    graph = dequantize.graph
    if whole is None or scale is None or tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{dequantize.name!r} has no constant scales")
    scales = tensor.numpy()
    if scales.ndim == 0 or dequantize.attributes.get_int("axis", 1) != 0:
        return _Table(whole, scale, of_rows=False)
    return _Table(whole, _column(graph, scales, f"{scale.name}.column", taken), of_rows=True)


def _column(graph: ir.Graph, scales: Array, name: str, taken: set[str | None]) -> ir.Value:
    """Store scales as [rows, 1], so that those of gathered rows lie beside them."""
    return initializer(graph, ir.Tensor(scales[:, None].copy(), name=unique(name, taken)))


def _gather(node: ir.Node, table: _Table, taken: set[str | None]) -> None:
    """Put Gather, Gather, Cast and Mul in the place of a Gather, whose result keeps its name."""
    graph, result, rows = node.graph, node.outputs[0], node.inputs[1]
    if graph is None:
        raise ValueError(f"{node.name!r} is in no graph")
    name = result.name or "rows"

    def value(suffix: str, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=unique(f"{name}.{suffix}", taken), type=ir.TensorType(dtype))

    whole, cast = value("int8", ir.DataType.INT8), value("cast", FLOAT)
    label = unique(f"{name}/Gather", taken)
    made = [ir.node("Gather", [table.whole, rows], outputs=[whole], name=label)]
    scale = table.scales
    if table.of_rows:
        scale = value("scale", FLOAT)
        label = unique(f"{name}/Gather", taken)
        made.append(ir.node("Gather", [table.scales, rows], outputs=[scale], name=label))
    wide = ir.node(
        "Cast",
        [whole],
        attributes={"to": int(FLOAT)},
        outputs=[cast],
        name=unique(f"{name}/Cast", taken),
    )
    multiplied = ir.node("Mul", [cast, scale], name=node.name or unique(f"{name}/Mul", taken))
    new = multiplied.outputs[0]
    new.type, new.shape = result.type or ir.TensorType(FLOAT), result.shape
    graph.insert_after(node, [*made, wide, multiplied])
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, new)
    for place, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[place] = new
    result.name, new.name = unique(f"{name}.before", taken), name
    graph.remove(node, safe=True)
