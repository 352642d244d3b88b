"""Matrices of few bits in blocks, which a kernel takes as they are stored.

They are constants of ``DequantizeLinear``. Its zero points have the type of the integers: where
those of MatMulNBits are floats, the matrix is computed step by step: (integers - zero points) ·
scales, of blocks along the last axis. All of that is one constant, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Array, Facts
from narrowpass_planning.weights.weight import Blocks, Weight, digest

BITS = {"uint2": 2, "int2": 2, "uint4": 4, "int4": 4, "uint8": 8, "int8": 8}
"""Bits of the integers that the kernel takes, by their type."""

FLOAT8 = "float8_e4m3fn", "float8_e5m2"
"""Types of float8 that the kernel takes: those whose bits are the upper ones of a float16."""

_SIZES = 256, 128, 64, 32
"""Of the blocks that rows of one scale are divided into, where they divide the row."""

_LARGE = 1 << 20
"""Zero points that are not looked at to find that all are one, unless they are in memory anyway."""

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
    if rest or block % (32 // BITS[x.dtype.name]) or {zero.dtype, scale.dtype} != {dtype.numpy()}:
        return False
    blocks = Blocks(x, _as_stored(scale), zero, block, x.shape[1], BITS[x.dtype.name])
    node_of_zero = chain.zero.producer()
    given = None if node_of_zero is None else node_of_zero.inputs[0]
    common = None if given is None else _common(given, facts)
    derived = blocks if common is None else dataclasses.replace(blocks, zero=None, common=common)
    _derive(chain, node.outputs[0], (zero, scale), derived, facts)
    return True


def blocks_of(node: ir.Node, facts: Facts) -> Blocks | None:
    """Return a dequantized matrix as blocks along its rows or columns, if a kernel may take it so.

    Several matrices, [E, K, N] or [E, N, K] in blocks along K or N, are stacked to one.

    Args:
        node: DequantizeLinear of constants, with one scale, one for each row or column, or one for
            each block.
        facts: of the graph.
    """
    value, scales, zeros = [*node.inputs, None][:3]
    if value is None or scales is None:
        return None
    x = facts.stored(value)
    scale: Weight | None = _as_stored(facts.stored(scales))
    zero = None if zeros is None else facts.stored(zeros)
    bits = 8 if x.dtype.name in FLOAT8 else BITS.get(x.dtype.name)
    block = node.attributes.get_int("block_size", 0)
    axis, rank = node.attributes.get_int("axis", 1), len(x.shape)
    if scale is None or bits is None or not -rank <= axis < rank or 0 in x.shape:
        return None
    matrices, transposed = x.shape[0] if rank == 3 else 1, False
    if rank == 3:
        along = axis % 3
        if not block or not along or len(scale.shape) != 3:
            return None
        order = (0, 1, 2) if along == 2 else (0, 2, 1)
        x, scale = _stacked(x, order), _stacked(scale, order)
        zero = None if zero is None else _stacked(zero, order)
        axis, rank = 1, 2
        transposed = along == 1
    if rank != 2:
        return None
    if block:
        along = axis % 2
    elif scale.size > 1:
        along = 1 - axis % 2
    else:
        along = 0 if _is_multiplied_as_stored(node.outputs[0]) else 1
    if along == 0:
        transposed = True
        x, scale = x.transpose(1, 0), _transposed(scale)
        zero = None if zero is None else _transposed(zero)
    rows, columns = x.shape
    if not block:
        block = next((size for size in _SIZES if columns % size == 0), 32)
        count = -(-columns // block)
        scale = _repeated(scale, rows, count)
        zero = None if zero is None else _repeated(zero, rows, count)
    unit = 32 // bits
    if scale is None or block % unit or scale.shape != (rows, -(-columns // block)):
        return None
    common = 0 if zeros is None else _common(zeros, facts)
    if x.dtype.name in FLOAT8 and common != 0:
        return None
    if common is not None:
        zero = None
    elif zero is None or zero.shape != scale.shape:
        return None
    return Blocks(
        x, scale, zero, block, columns, bits, common or 0, transposed=transposed, matrices=matrices
    )


def _is_multiplied_as_stored(value: ir.Value) -> bool:
    """Return whether a matmul reads a matrix as [K, N]: one scale has blocks along either axis."""
    return any(
        use.idx == 1
        and (
            use.node.op_type == "MatMul"
            or (use.node.op_type == "Gemm" and not use.node.attributes.get_int("transB", 0))
        )
        for use in value.uses()
    )


def _as_stored(scale: Weight) -> Weight:
    """Return scales that are cast from float16 as float16, which the kernel reads as they are."""
    narrow = scale.narrow
    return scale if narrow is None or narrow.dtype != np.float16 else narrow


def _stacked(weight: Weight, order: tuple[int, ...]) -> Weight:
    """Return matrices, their axes in another order, one below the other."""
    ordered = weight.transpose(*order)
    return ordered.reshape(ordered.shape[0] * ordered.shape[1], ordered.shape[2])


def _transposed(weight: Weight) -> Weight:
    return weight.transpose(1, 0) if len(weight.shape) == 2 else weight


def _repeated(weight: Weight, rows: int, count: int) -> Weight | None:
    """Return one number, or one for each row, as one for each block."""
    if weight.size not in (1, rows):
        return None

    def load(array: Array) -> Array:
        return np.broadcast_to(array.reshape(-1, 1), (rows, count))

    return weight.then(f"rows {rows} blocks {count}", load, (rows, count))


def _common(value: ir.Value, facts: Facts) -> int | None:
    """Return the zero point of all blocks, if it is one integer, and need not be read for that."""
    if not facts.is_constant(value):
        return None
    weight = facts.stored(value)
    if weight.size > _LARGE and not isinstance(value.const_value, ir.Tensor):
        return None
    array = np.asarray(facts.array(value)).astype(np.float32).reshape(-1)
    if not array.size or (array != array[0]).any() or not float(array[0]).is_integer():
        return None
    return int(array[0]) if abs(array[0]) < 256 else None


def _derive(
    chain: _Chain, value: ir.Value, numbers: tuple[Weight, Weight], blocks: Blocks, facts: Facts
) -> None:
    """Record every value of the computation; `numbers` are zero points and scales, of its dtype."""
    x, (zero, scale) = blocks.integers, numbers
    shape = (*scale.shape, blocks.size)
    dtype = scale.dtype
    cast = x.then(f"as {dtype.name}", lambda array: array.astype(dtype), dtype=dtype)
    wide = cast.reshape(*shape)
    zeros, scales = (part.reshape(*scale.shape, 1) for part in (zero, scale))

    def subtract() -> Array:
        array: Array = wide.array() - zeros.array()
        return array

    def multiply() -> Array:
        with np.errstate(invalid="ignore", over="ignore"):  # 0 times an infinite scale is NaN
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
