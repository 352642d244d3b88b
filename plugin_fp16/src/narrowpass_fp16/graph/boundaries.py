"""What goes where at the borders of subgraphs and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from narrowpass_ir.subgraphs import subgraphs


def borders(model: ir.Model, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield what goes where at the borders of subgraphs and functions: from, to."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        yield from _pairs(node.inputs, function.inputs)
        yield from _pairs(function.outputs, node.outputs)
    elif not node.domain and node.op_type == "If":
        for graph in subgraphs(node):
            yield from _pairs(graph.outputs, node.outputs)
    elif not node.domain and node.op_type == "Loop":
        for body in subgraphs(node):
            yield from _pairs(node.inputs[2:], body.inputs[2:])
            yield from _pairs(body.outputs[1:], body.inputs[2:])
            yield from _pairs(body.outputs[1:], node.outputs)
            yield from _pairs(node.inputs[2:], node.outputs)
    elif not node.domain and node.op_type == "Scan":
        for body in subgraphs(node):
            states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            yield from _pairs(node.inputs, body.inputs)
            yield from _pairs(body.outputs[:states], body.inputs[:states])
            yield from _pairs(body.outputs, node.outputs)


def _pairs(
    sources: Iterable[ir.Value | None], targets: Iterable[ir.Value]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    for source, target in zip(sources, targets, strict=False):
        if source is not None:
            yield source, target
