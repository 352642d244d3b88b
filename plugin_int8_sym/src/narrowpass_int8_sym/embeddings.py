"""Embeddings in int8 with a scale for each row: constants whose rows a Gather looks up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass import Decision
from narrowpass_int8_sym.scales import of_magnitudes
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_int8_sym.weights import (
    Array,
    QuantizedTensor,
    add_initializer,
    drop_unread,
    magnitudes,
)
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

FLOAT = ir.DataType.FLOAT

LEAST_ELEMENTS = 1 << 14
"""Embeddings with fewer elements stay float: the added nodes cost more than the bytes saved."""


def find_embeddings(
    graph: ir.Graph, barred: Collection[ir.Node], weighted_nodes: Iterable[WeightedNode]
) -> list[ir.Node]:
    """Return the Gather nodes whose embedding can become int8, in order.

    They gather rows of float32 constants with two dimensions. All other consumers of the embedding
    must read it as int8, too: it would be stored twice otherwise.

    Args:
        graph: that is searched, without subgraphs.
        barred: nodes that must gather floats.
        weighted_nodes: those whose weights become int8, such as an LM head with a tied embedding.
    """
    found = {node for node in graph if node not in barred and _embedding(node) is not None}
    # The alpha of a Gemm is folded into its scales, which the Gather must not apply.
    read = {
        (weighted.node, weighted.index): weighted
        for weighted in weighted_nodes
        if weighted.node.attributes.get_float("alpha", 1.0) == 1.0
    }
    transposes = {weighted.transpose for weighted in read.values()}

    def becomes_int8(node: ir.Node, index: int) -> bool:
        if node in transposes:
            return all((use.node, use.idx) in read for use in node.outputs[0].uses())
        return (node, index) in read or (index == 0 and node in found)

    return [
        node
        for node in graph
        if node in found
        and (embedding := _embedding(node)) is not None
        and all(becomes_int8(use.node, use.idx) for use in embedding.uses())
    ]


def embedding_decisions(nodes: Sequence[ir.Node]) -> dict[ir.Node, Decision]:
    """Return the decisions about the nodes of `find_embeddings`."""
    reason = "its embedding is stored as int8; its result is float"
    return {
        node: Decision(
            node.name or node.outputs[0].name or "", node.op_type, "int8", "rule", reason
        )
        for node in nodes
    }


def _embedding(node: ir.Node) -> ir.Value | None:
    if not _gathers_rows(node):
        return None
    embedding = node.inputs[0]
    tensor = constant_tensor(embedding)
    if (
        embedding is None
        or tensor is None
        or embedding.is_graph_input()
        or embedding.is_graph_output()
    ):
        return None
    small = tensor.dtype != FLOAT or len(tensor.shape) != 2 or tensor.size < LEAST_ELEMENTS
    return None if small else embedding


def _gathers_rows(node: ir.Node) -> bool:
    return (
        node.op_type == "Gather"
        and not node.domain
        and node.attributes.get_int("axis", 0) in (0, -2)
        and len(node.inputs) == 2
    )


@dataclass(frozen=True)
class _QuantizedEmbedding:
    """An int8 embedding.

    Attributes:
        integers: int8 [rows, columns].
        scales: float32 [rows, 1], or those of a matmul with the same (tied) weight: [columns] or
            [].
        per_row: whether each row has its own scale.
    """

    integers: ir.Value
    scales: ir.Value
    per_row: bool


def quantize_embeddings(graph: ir.Graph, nodes: Sequence[ir.Node], taken: set[str | None]) -> int:
    """Quantize embeddings: each Gather becomes Gathers of integers and of scales, Cast and Mul.

    Args:
        graph: of the nodes; a tied weight that is int8 already is not stored again.
        nodes: from `find_embeddings`.
        taken: names in use; new ones are added.

    Returns:
        The number of embeddings.

    Raises:
        DataError: an element of an embedding is infinite or NaN.
    """
    weights = _weights(graph) if nodes else {}
    stored: dict[ir.Value, _QuantizedEmbedding] = {}
    for node in nodes:
        embedding = node.inputs[0]
        if embedding is None:
            continue
        if embedding not in stored:
            given = weights.get(id(constant_tensor(embedding)))
            stored[embedding] = (
                _quantized(embedding, taken) if given is None else _shared(given, taken)
            )
        _gather(node, stored[embedding], taken)
    for embedding in stored:
        drop_unread(embedding)
    return len(stored)


def _weights(graph: ir.Graph) -> dict[int, ir.Node]:
    """Return the DequantizeLinear of each int8 weight, by the identity of its float tensor."""
    found: dict[int, ir.Node] = {}
    for node in graph:
        if node.op_type == "DequantizeLinear" and not node.domain:
            tensor = constant_tensor(node.inputs[0])
            if isinstance(tensor, QuantizedTensor):
                found.setdefault(id(tensor.raw), node)
    return found


def _quantized(embedding: ir.Value, taken: set[str | None]) -> _QuantizedEmbedding:
    """Quantize an embedding with a scale for each row."""
    tensor, producer = constant_tensor(embedding), embedding.producer()
    graph = embedding.graph if producer is None else producer.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{embedding.name!r} is no constant of a graph")
    scales = of_magnitudes(magnitudes(tensor, 0))
    name = embedding.name or "embedding"
    whole = add_initializer(
        graph, QuantizedTensor(tensor, scales, 0, reserve_name(f"{name}.int8", taken))
    )
    return _QuantizedEmbedding(whole, _column(graph, scales, f"{name}.scale", taken), per_row=True)


def _shared(dequantize: ir.Node, taken: set[str | None]) -> _QuantizedEmbedding:
    """Return the int8 weight of a matmul as an embedding, with the scales of the weight."""
    whole, scale = dequantize.inputs[:2]
    tensor = constant_tensor(scale)
    graph = dequantize.graph
    if whole is None or scale is None or tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{dequantize.name!r} has no constant scales")
    scales = tensor.numpy()
    if scales.ndim == 0 or dequantize.attributes.get_int("axis", 1) != 0:
        return _QuantizedEmbedding(whole, scale, per_row=False)
    return _QuantizedEmbedding(
        whole, _column(graph, scales, f"{scale.name}.column", taken), per_row=True
    )


def _column(graph: ir.Graph, scales: Array, name: str, taken: set[str | None]) -> ir.Value:
    """Add scales as [rows, 1], so that gathered scales broadcast against gathered rows."""
    return add_initializer(graph, ir.Tensor(scales[:, None].copy(), name=reserve_name(name, taken)))


def _gather(node: ir.Node, embedding: _QuantizedEmbedding, taken: set[str | None]) -> None:
    """Replace a Gather by Gather, Gather, Cast and Mul; the result keeps its name."""
    graph, result, rows = node.graph, node.outputs[0], node.inputs[1]
    if graph is None:
        raise ValueError(f"{node.name!r} is in no graph")
    name = result.name or "rows"

    def value(suffix: str, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=reserve_name(f"{name}.{suffix}", taken), type=ir.TensorType(dtype))

    whole, cast = value("int8", ir.DataType.INT8), value("cast", FLOAT)
    label = reserve_name(f"{name}/Gather", taken)
    nodes = [ir.node("Gather", [embedding.integers, rows], outputs=[whole], name=label)]
    scale = embedding.scales
    if embedding.per_row:
        scale = value("scale", FLOAT)
        label = reserve_name(f"{name}/Gather", taken)
        nodes.append(ir.node("Gather", [embedding.scales, rows], outputs=[scale], name=label))
    wide = ir.node(
        "Cast",
        [whole],
        attributes={"to": int(FLOAT)},
        outputs=[cast],
        name=reserve_name(f"{name}/Cast", taken),
    )
    multiplied = ir.node("Mul", [cast, scale], name=node.name or reserve_name(f"{name}/Mul", taken))
    new = multiplied.outputs[0]
    new.type, new.shape = result.type or ir.TensorType(FLOAT), result.shape
    graph.insert_after(node, [*nodes, wide, multiplied])
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, new)
    for place, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[place] = new
    result.name, new.name = reserve_name(f"{name}.before", taken), name
    graph.remove(node, safe=True)
