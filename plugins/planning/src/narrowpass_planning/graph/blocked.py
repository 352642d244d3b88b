"""Block-quantized matrices with floating-point zero points: the expansion of MatMulNBits.

``DequantizeLinear`` takes zero points of the type of the integers only, so that the matrix is
computed step by step: (integers - zero points) · scales, of blocks along the last axis. All of that
is one constant, which the kernel for block-quantized matrices reads as it is stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Array, Facts
from narrowpass_planning.weights.weight import Blocks, Weight, digest

BITS = {"uint4": 4, "uint8": 8}
"""Of the integers that the kernel takes, by their type."""

_FLOATS = {ir.DataType.FLOAT, *NARROW}


@dataclass(frozen=True)
class _Chain:
    """The values between the integers and the dequantized matrix."""

    integers: ir.Value
    cast: ir.Value
    wide: ir.Value
    zero: ir.Value
    centered: ir.Value
    scale: ir.Value
    scaled: ir.Value


def derive_blocks(node: ir.Node, facts: Facts) -> bool:
    """Record in `facts` a matrix that is computed so from constants; return whether it is one.

    Args:
        node: the Reshape that ends the computation.
        facts: of the graph.
    """
    chain = _matched(node)
    if chain is None:
        return False
    zero, scale = (_given(value, facts) for value in (chain.zero, chain.scale))
    dims, dtype = facts.dims(node.outputs[0]), facts.dtype(chain.cast)
    if zero is None or scale is None or dims is None or dtype not in _FLOATS or dtype is None:
        return False
    if not facts.is_constant(chain.integers) or scale.shape != zero.shape or len(scale.shape) != 2:
        return False
    x, (rows, count) = facts.stored(chain.integers), scale.shape
    if x.dtype.name not in BITS or len(x.shape) != 2 or dims != x.shape or x.shape[0] != rows:
        return False
    block, rest = divmod(x.shape[1], count)
    if rest or block % 8 or {zero.dtype, scale.dtype} != {dtype.numpy()}:
        return False
    _derive(
        chain, node.outputs[0], Blocks(x, scale, zero, block, x.shape[1], BITS[x.dtype.name]), facts
    )
    return True


def _derive(chain: _Chain, value: ir.Value, blocks: Blocks, facts: Facts) -> None:
    x, scale, zero = blocks.integers, blocks.scale, blocks.zero
    if zero is None:
        raise ValueError("there are no zero points")
    shape = (*scale.shape, blocks.size)
    dtype = scale.dtype
    cast = x.then(f"as {dtype.name}", lambda array: array.astype(dtype), dtype=dtype)
    wide = cast.reshape(*shape)
    zeros, scales = (part.reshape(*scale.shape, 1) for part in (zero, scale))

    def subtract() -> Array:
        array: Array = wide.array() - zeros.array()
        return array

    def multiply() -> Array:
        array: Array = subtract() * scales.array()
        return array

    parts = [part.identity for part in (wide, zeros, scales)]
    known = all(parts)
    centered = Weight(shape, dtype, digest("moved", *parts[:2]) if known else "", subtract, x.drop)
    name = digest("moved and scaled", *parts) if known else ""
    scaled = Weight(shape, dtype, name, multiply, x.drop)
    matrix = dataclasses.replace(scaled.reshape(*x.shape), blocks=blocks)
    weights = {"cast": cast, "wide": wide, "zero": zeros, "centered": centered, "scale": scales}
    for field, weight in {**weights, "scaled": scaled}.items():
        facts.derive(getattr(chain, field), weight)
    facts.derive(value, matrix)


def _matched(node: ir.Node) -> _Chain | None:
    """Return the values of the computation that ends with `node`, if it is one."""
    scaled = _input(node, "Reshape", 0)
    centered, scale = _operands(scaled, "Mul")
    wide, zero = _operands(centered, "Sub")
    cast = _input(_producer(wide), "Reshape", 0)
    integers = _input(_producer(cast), "Cast", 0)
    values = integers, cast, wide, zero, centered, scale, scaled
    if any(value is None for value in values):
        return None
    return _Chain(*(value for value in values if value is not None))


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _input(node: ir.Node | None, kind: str, index: int) -> ir.Value | None:
    if node is None or node.domain or node.op_type != kind or len(node.inputs) <= index:
        return None
    return node.inputs[index]


def _operands(value: ir.Value | None, kind: str) -> tuple[ir.Value | None, ir.Value | None]:
    node = _producer(value)
    return _input(node, kind, 0), _input(node, kind, 1)


def _given(value: ir.Value, facts: Facts) -> Weight | None:
    """Return the constant [rows, blocks] of which `value` is [rows, blocks, 1]."""
    node = value.producer()
    given = _input(node, "Unsqueeze", 0)
    axes = None if node is None or len(node.inputs) != 2 else facts.constant(node.inputs[1])
    if given is None or axes is None or not facts.is_constant(given):
        return None
    weight = facts.stored(given)
    fits = len(weight.shape) == 2 and np.asarray(axes).reshape(-1).tolist() in ([2], [-1])
    return weight if fits else None
