"""Sizes of KV caches that exporters leave open.

onnxruntime-genai's model builder calls the last axis of each cache ``kv_cache_dim``, though the
attributes of GroupQueryAttention and the shape of its rows determine it.
"""

from __future__ import annotations

import onnx_ir as ir

_PAST, _PRESENT = slice(3, 5), slice(1, 3)


def size_caches(model: ir.Model) -> None:
    """Complete the shapes of caches of GroupQueryAttention by the heads and the size of a head.

    A cache is an input of the graph, [batch, heads, rows, head size], and the result with the new
    rows an output. Sizes that a file states stay as they are.

    Args:
        model: as loaded, with the types that its file states; changed.
    """
    outputs = {id(value) for value in model.graph.outputs}
    for node in model.graph:
        if node.domain != "com.microsoft" or node.op_type != "GroupQueryAttention":
            continue
        heads = node.attributes.get_int("kv_num_heads", 0)
        size = _head_size(node, heads)
        if size is None:
            continue
        given = [value for value in node.inputs[_PAST] if value and value.is_graph_input()]
        for value in (*given, *(each for each in node.outputs[_PRESENT] if id(each) in outputs)):
            _complete(value, heads, size)


def _head_size(node: ir.Node, heads: int) -> int | None:
    """Return the size of a head: of the keys, or of a row with queries, keys and values."""
    query, key = node.inputs[:2]
    rows, parts = (
        (key, heads) if key else (query, node.attributes.get_int("num_heads", 0) + 2 * heads)
    )
    if rows is None or rows.shape is None or len(rows.shape) != 3 or parts < 1 or heads < 1:
        return None
    width = rows.shape[2]
    return width // parts if isinstance(width, int) and width % parts == 0 else None


def _complete(value: ir.Value, heads: int, size: int) -> None:
    if value.shape is None or len(value.shape) != 4:
        return
    batch, old_heads, rows, old_size = value.shape
    value.shape = ir.Shape(
        [
            batch,
            old_heads if isinstance(old_heads, int) else heads,
            rows,
            old_size if isinstance(old_size, int) else size,
        ]
    )
