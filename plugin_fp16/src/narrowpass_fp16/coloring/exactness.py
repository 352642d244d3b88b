"""Nodes that compute indices and sizes, which rounding would change.

What decides on numbers that nothing has rounded yet is better wide, too, where that costs no cast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass import Color
from narrowpass_fp16.schemas import borders, is_float
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.movement import SELECTION

CONTROL_FLOW = ("If", "Loop", "Scan")

_FLOATS = {ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def exact_nodes(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    color: Callable[[ir.Node], Color],
    dtype: ir.DataType,
) -> tuple[list[ir.Node], set[ir.Value]]:
    """Return gray nodes that an index or a size follows from, and such values at borders.

    They lie between a Cast to integers, the sizes of a Resize and the like, and the green nodes
    before them, whose results are inexact anyway.

    Args:
        model: has the functions that are looked through.
        nodes: all of the model.
        color: returns the colour of a node.
        dtype: the narrow type.
    """
    given: dict[ir.Value, list[ir.Value]] = {}
    for node in nodes:
        for source, target in borders(model, node):
            given.setdefault(target, []).append(source)
    waiting = [value for node in nodes for value in _counted(node)]
    seen: set[ir.Value] = set()
    green: set[ir.Value] = set()
    found: list[ir.Node] = []
    while waiting:
        value = waiting.pop()
        if value in seen or not is_float(value):
            continue
        seen.add(value)
        producer = value.producer()
        if value in given:
            waiting += given[value]
        elif producer is not None and color(producer) is Color.GREEN:
            green.add(value)
        elif producer is not None:
            if color(producer) is Color.GRAY:
                found.append(producer)
            waiting += [item for item in producer.inputs if item is not None]
    # At a border there is something to lose only if a source is not of a green node.
    inexact = green | {value for value in seen if _fits(value, dtype)}
    while more := {
        value
        for value in seen - inexact
        if value in given and all(v in inexact or not is_float(v) for v in given[value])
    }:
        inexact |= more
    return found, {value for value in seen - inexact if value in given}


def _fits(value: ir.Value, dtype: ir.DataType) -> bool:
    """Return whether a value is a small constant that the narrow type holds exactly."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.size > _SMALL:
        return False
    array = tensor.numpy()
    with np.errstate(over="ignore"):
        return bool((array.astype(dtype.numpy()).astype(array.dtype) == array).all())


_SMALL = 1024
"""Elements of a constant that is looked at."""


def _counted(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node that are taken as indices or sizes."""
    first = node.inputs[0] if node.inputs else None
    if node.domain or first is None:
        return []
    if node.op_type in ("Cast", "CastLike") and is_float(first):
        kept = is_float(node.outputs[0]) or node.outputs[0].dtype in _FLOATS
        return [] if kept or becomes_float_again(node) else [first]
    if node.op_type in ("Resize", "Upsample"):
        return [value for value in node.inputs[1:] if value is not None]
    if node.op_type == "Range":
        return [value for value in node.inputs if value is not None]
    if node.op_type == "OneHot":  # indices and depth
        return [value for value in node.inputs[:2] if value is not None]
    return []


_KEEPS = (SELECTION - {"Pad"}) | {
    "Abs",
    "Ceil",
    "Floor",
    "Neg",
    "Relu",
    "Round",
}
"""Operators of one float operand whose results in the narrow type are those of float32, rounded."""


def truncated(node: ir.Node) -> ir.Node | None:
    """Return the Cast to integers that a Cast to floats takes back; None where it does not.

    What a narrow number becomes without its fraction is a narrow number, however large it is.
    """
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if (
        producer is None
        or producer.op_type != "Cast"
        or producer.domain
        or producer.inputs[0] is None
    ):
        return None
    whole = producer.outputs[0].dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return producer if whole and is_float(producer.inputs[0]) else None


def rounded_by(value: ir.Value | None) -> list[ir.Node]:
    """Return the nodes that a value comes of unchanged, up to one that computes."""
    found: list[ir.Node] = []
    while value is not None:
        node = value.producer()
        if node is None:
            break
        found.append(node)
        if node.domain or node.op_type not in _KEEPS:
            break
        value = node.inputs[0]
    return found


def becomes_float_again(node: ir.Node) -> bool:
    """Return whether the integer output of a Cast becomes float again, and nothing else."""
    value = node.outputs[0]
    readers = [user for user, _ in value.uses()]
    return (
        node.op_type == "Cast"
        and value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
        and not value.is_graph_output()
        and bool(readers)
        and all(n.op_type == "Cast" and not n.domain and is_float(n.outputs[0]) for n in readers)
    )


WHOLE = {ir.DataType.FLOAT16: 2048, ir.DataType.BFLOAT16: 256}
"""The integers up to which a type holds all of them."""

_FEW = {
    ir.DataType.BOOL,
    ir.DataType.INT2,
    ir.DataType.INT4,
    ir.DataType.INT8,
    ir.DataType.UINT2,
    ir.DataType.UINT4,
    ir.DataType.UINT8,
}
"""Integers that all narrow floats hold."""


def is_whole(value: ir.Value, most: int) -> bool:
    """Return whether a value has integers up to `most` only: by its type, or as a constant."""
    if value.dtype in _FEW:
        return True
    node = value.producer()
    if node is not None and node.op_type == "Cast" and not node.domain and node.inputs[0]:
        return node.inputs[0].dtype in _FEW
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype.is_floating_point() or value.is_graph_input():
        return False
    array = tensor.numpy()
    return array.dtype.kind in "iu" and int(np.abs(array).max(initial=0)) <= most


_DECIDES = {
    "ArgMax",
    "ArgMin",
    "Ceil",
    "Equal",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "Hardmax",
    "Less",
    "LessOrEqual",
    "Mod",
    "NonZero",
    "Round",
    "Sign",
    "TopK",
    "Unique",
}
"""Operators of which a result is another at once where an operand is rounded."""


def deciding(
    model: ir.Model, nodes: Sequence[ir.Node], color: Callable[[ir.Node], Color]
) -> set[ir.Node]:
    """Return gray nodes that decide on values no green node is behind, and what leads to them.

    Args:
        model: has the inputs.
        nodes: of the model, in order, those of subgraphs and functions included.
        color: returns the colour of a node.
    """
    exact = set(model.graph.inputs)
    found: set[ir.Node] = set()
    for node in nodes:
        if node.domain or node.op_type in CONTROL_FLOW or color(node) is Color.GREEN:
            continue
        given = [value for value in node.inputs if value is not None and is_float(value)]
        if all(value in exact or constant_tensor(value) is not None for value in given):
            exact.update(node.outputs)
            if node.op_type in _DECIDES and color(node) is Color.GRAY:
                found.add(node)
    waiting = list(found)
    while waiting:
        for value in waiting.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in found and color(producer) is Color.GRAY:
                found.add(producer)
                waiting.append(producer)
    return found
