"""Tables that rows are gathered from, embeddings above all, in bytes with a scale for each row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass_int8_sym.scales import of_magnitudes
from narrowpass_int8_sym.storage import drop_unread, initializer, unique
from narrowpass_int8_sym.weights import QuantizedTensor, magnitudes

FLOAT = ir.DataType.FLOAT

LEAST_ELEMENTS = 1 << 14
"""A table with fewer elements saves less than what stands in its place costs."""


def find_tables(graph: ir.Graph, barred: Collection[ir.Node]) -> list[ir.Node]:
    """Give the nodes that gather rows of tables which can be in bytes, in order.

    They gather rows of constants of float32 with two dimensions. Nothing else may read such a
    table: it would be stored twice.

    Args:
        graph: to look in; graphs within it are left alone.
        barred: nodes that are to gather floats.
    """
    found = {node for node in graph if node not in barred and _table(node) is not None}
    return [
        node
        for node in graph
        if node in found
        and (table := _table(node)) is not None
        and all(use.idx == 0 and use.node in found for use in table.uses())
    ]


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


def store_tables(nodes: Sequence[ir.Node], taken: set[str | None]) -> int:
    """Let nodes gather bytes, and their scales, and multiply both; give how many tables there are.

    Args:
        nodes: as `find_tables` gives them.
        taken: names that others have; those of new values are added.

    Raises:
        DataError: an element of a table is infinite or NaN.
    """
    made: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in nodes:
        table = node.inputs[0]
        if table is None:
            continue
        if table not in made:
            made[table] = _stored(table, taken)
        _gather(node, *made[table], taken)
    for table in made:
        drop_unread(table)
    return len(made)


def _stored(table: ir.Value, taken: set[str | None]) -> tuple[ir.Value, ir.Value]:
    """Give the bytes of a table, int8 [rows, columns], and their scales, float32 [rows, 1]."""
    tensor, producer = constant_tensor(table), table.producer()
    graph = table.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{table.name!r} is no constant of a graph")
    scales = of_magnitudes(magnitudes(tensor, 0))
    name = table.name or "table"
    whole = QuantizedTensor(tensor, scales, 0, unique(f"{name}.int8", taken))
    column = ir.Tensor(np.ascontiguousarray(scales[:, None]), name=unique(f"{name}.scale", taken))
    return initializer(graph, whole), initializer(graph, column)


def _gather(node: ir.Node, table: ir.Value, scales: ir.Value, taken: set[str | None]) -> None:
    """Put Gather, Gather, Cast and Mul in the place of a Gather, whose result keeps its name."""
    graph, result, rows = node.graph, node.outputs[0], node.inputs[1]
    if graph is None:
        raise ValueError(f"{node.name!r} is in no graph")
    name = result.name or "rows"

    def value(suffix: str, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=unique(f"{name}.{suffix}", taken), type=ir.TensorType(dtype))

    whole, scale = value("int8", ir.DataType.INT8), value("scale", FLOAT)
    cast = value("cast", FLOAT)
    label = unique(f"{name}/Gather", taken)
    gathered = ir.node("Gather", [table, rows], outputs=[whole], name=label)
    scaled = ir.node(
        "Gather", [scales, rows], outputs=[scale], name=unique(f"{name}/Gather", taken)
    )
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
    graph.insert_after(node, [gathered, scaled, wide, multiplied])
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, new)
    for place, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[place] = new
    result.name, new.name = unique(f"{name}.before", taken), name
    graph.remove(node, safe=True)
