"""Numbers that are zero in the narrow type, where it matters whether they are.

1e-9 becomes 0 in float16. As a part of a sum that is no more than rounding; but its sign, its
reciprocal and its comparison with 0 are others. So the way from such a constant to what depends on
it stays wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_fp16.coloring.constants import constant_of
from narrowpass_fp16.schemas import borders, is_float
from narrowpass_ir.io import elements

_DEPENDS: dict[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "BitCast": (0,),
    "Ceil": (0,),
    "Div": (1,),
    "Equal": (0, 1),
    "Floor": (0,),
    "Greater": (0, 1),
    "GreaterOrEqual": (0, 1),
    "Less": (0, 1),
    "LessOrEqual": (0, 1),
    "Log": (0,),
    "LpNormalization": (0,),
    "Mod": (0, 1),
    "NonZero": (0,),
    "Pow": (0, 1),
    "Reciprocal": (0,),
    "ReduceLogSum": (0,),
    "ReduceProd": (0,),
    "Sign": (0,),
    "Sqrt": (0,),
    "TopK": (0,),
    "Unique": (0,),
}
"""Inputs of which it matters whether an element is zero, by operator; of a Cast to what is no
float, too."""

_STOPS = {
    "Attention",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "DeformConv",
    "Einsum",
    "Exp",
    "GRU",
    "Gemm",
    "GroupNormalization",
    "HardSigmoid",
    "Hardmax",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "LogSoftmax",
    "MatMul",
    "MeanVarianceNormalization",
    "RMSNormalization",
    "RNN",
    "Sigmoid",
    "Softmax",
    "Softplus",
}
"""Operators in whose results a number that is nearly zero is no longer to be seen."""

_INEXACT = {
    "Attention",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "DeformConv",
    "Einsum",
    "Gemm",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "MatMul",
}
"""Operators whose results are rounded by far more than an element of a bias that vanishes."""

_PIECE = 1 << 20


def vanishing(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    dtype: ir.DataType,
    label: Callable[[ir.Node], str],
) -> tuple[dict[ir.Node, str], set[ir.Value]]:
    """Return the nodes that must stay wide, with the reason, and the values that must.

    Args:
        model: has the functions.
        nodes: of the model, in order, those of subgraphs and functions included.
        dtype: the narrow type.
        label: names a node.
    """
    at_border: dict[ir.Value, list[ir.Value]] = {}
    for node in nodes:
        for source, target in borders(model, node):
            at_border.setdefault(target, []).append(source)
    # Backwards from what depends on it, to constants; few of them are ever reached.
    targets: dict[ir.Value, list[ir.Value]] = {}
    ends: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes:
        for value in _depends(node):
            ends.setdefault(value, []).append(node)
    waiting, reached = list(ends), set(ends)
    constants: list[ir.Value] = []
    while waiting:
        value = waiting.pop()
        if constant_of(value) is not None and not value.is_graph_input():
            constants.append(value)
            continue
        if _factors(value):
            constants.append(value)
        for source in (*at_border.get(value, ()), *_sources(value)):
            targets.setdefault(source, []).append(value)
            if source not in reached:
                reached.add(source)
                waiting.append(source)
    found: dict[ir.Node, str] = {}
    wide: set[ir.Value] = set()
    limit = _ZERO[dtype]
    for constant in constants:
        if _least(constant) <= limit:
            _follow(constant, targets, ends, found, wide, dtype, label)
    return found, wide


def _follow(
    constant: ir.Value,
    targets: Mapping[ir.Value, Sequence[ir.Value]],
    ends: Mapping[ir.Value, Sequence[ir.Node]],
    found: dict[ir.Node, str],
    wide: set[ir.Value],
    dtype: ir.DataType,
    label: Callable[[ir.Node], str],
) -> None:
    """Mark what is between a constant and what depends on it."""
    way: list[ir.Value] = [constant]
    seen = {constant}
    for value in way:
        for target in targets.get(value, ()):
            if target not in seen:
                seen.add(target)
                way.append(target)
    last = next(node for value in way for node in ends.get(value, ()))
    name = dtype.name.lower()
    reason = (
        f"an element of {constant.name!r} is zero in {name}, and {last.op_type} "
        f"{label(last)!r} depends on whether it is"
    )
    for value in way:
        wide.add(value)
        producer = value.producer()
        if producer is not None and producer.op_type not in ("Constant", "ConstantOfShape"):
            found.setdefault(producer, reason)
        for node in ends.get(value, ()):
            found.setdefault(node, reason)


def _depends(node: ir.Node) -> Iterator[ir.Value]:
    if node.domain:
        return
    indices = _DEPENDS.get(node.op_type, ())
    if node.op_type == "Cast":
        kind = node.outputs[0].dtype
        indices = () if kind is None or kind.is_floating_point() else (0,)
    for index in indices:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and is_float(value):
            yield value


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that a computed one may have its elements from."""
    node = value.producer()
    if node is None or node.domain or node.op_type in _STOPS:
        return
    inputs: Sequence[ir.Value | None] = node.inputs
    if node.op_type in ("Div", "Pow"):
        inputs = node.inputs[:1]
    elif node.op_type in ("Add", "Sub", "Sum"):
        inputs = [value for value in node.inputs if not _is_bias(value, node)]
    yield from (v for v in inputs if v is not None and (is_float(v) or _is_double(v)))


def _is_bias(value: ir.Value | None, node: ir.Node) -> bool:
    """Return whether an operand of a sum is a bias of a matmul or the like; no lone epsilon."""
    tensor = None if value is None else constant_of(value)
    if tensor is None or tensor.size == 1:
        return False
    producers = [other.producer() for other in node.inputs if other is not None]
    return any(producer is not None and producer.op_type in _INEXACT for producer in producers)


def _is_double(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return value.dtype == ir.DataType.DOUBLE or (
        tensor is not None and tensor.dtype == ir.DataType.DOUBLE
    )


_ZERO = {ir.DataType.FLOAT16: 2.0**-25, ir.DataType.BFLOAT16: 2.0**-134}
"""The largest magnitude that is rounded to zero."""


def _factors(value: ir.Value) -> list[ir.Value]:
    """Return the constants that a Mul multiplies; none where a value is no such Mul."""
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.domain:
        return []
    given = [factor for factor in node.inputs if factor is not None]
    constant = [v for v in given if constant_of(v) is not None and not v.is_graph_input()]
    return constant if len(constant) == len(given) else []


def _least(value: ir.Value) -> float:
    """Return the least magnitude in a constant, zero aside, or in a Mul of constants."""
    tensor = constant_of(value)
    if tensor is None:
        return math.prod(_least(factor) for factor in _factors(value))
    least = math.inf
    if tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return least
    for start in range(0, tensor.size, _PIECE):
        size = np.abs(elements(tensor, start, min(start + _PIECE, tensor.size)))
        least = min(least, float(size.min(where=size > 0, initial=math.inf)))
    return least
