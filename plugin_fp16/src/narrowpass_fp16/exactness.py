"""What indices and sizes are computed by: rounding would change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from narrowpass import Color
from narrowpass_fp16.schemas import is_float

CONTROL_FLOW = ("If", "Loop", "Scan")

_FLOATS = {ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def exact_nodes(
    model: ir.Model, nodes: Sequence[ir.Node], color: Callable[[ir.Node], Color]
) -> Iterator[ir.Node]:
    """Give gray nodes that an index or a size follows from.

    They lie between a Cast to integers, the sizes of a Resize and the like, and the green nodes
    before them, whose results are inexact anyway.

    Args:
        model: gives the functions that are looked through.
        nodes: all of the model.
        color: gives the colour of a node.
    """
    functions = model.functions
    given: dict[ir.Value, list[ir.Value]] = {}
    for node in nodes:
        function = functions.get(node.op_identifier())
        formals = () if function is None else function.inputs
        for formal, value in zip(formals, node.inputs, strict=False):
            given.setdefault(formal, []).extend([] if value is None else [value])
    waiting = [value for node in nodes for value in _counted(node)]
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or not is_float(value):
            continue
        seen.add(value)
        waiting += given.get(value, ())
        maker = value.producer()
        if maker is None:
            continue
        if maker.op_identifier() in functions:
            waiting.extend(functions[maker.op_identifier()].outputs)
            continue
        if color(maker) is Color.GREEN:
            continue
        if color(maker) is Color.GRAY and maker.op_type not in CONTROL_FLOW:
            yield maker
        waiting += [item for item in maker.inputs if item is not None]


def _counted(node: ir.Node) -> list[ir.Value]:
    """Give the inputs of a node that are taken as indices or sizes."""
    first = node.inputs[0] if node.inputs else None
    if node.domain or first is None:
        return []
    if node.op_type in ("Cast", "CastLike") and is_float(first):
        kept = is_float(node.outputs[0]) or node.outputs[0].dtype in _FLOATS
        return [] if kept else [first]
    if node.op_type in ("Resize", "Upsample"):
        return [value for value in node.inputs[1:] if value is not None]
    if node.op_type == "Range":
        return [value for value in node.inputs if value is not None]
    if node.op_type == "OneHot":  # indices and depth
        return [value for value in node.inputs[:2] if value is not None]
    return []
