"""Matmuls with weights of 2 to 8 bits, of FP4 and NF4 too, and embeddings of such weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import ViewedTensor

_KINDS = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8}

_INT8_ROWS = 4
"""The accuracy level at which A may be quantized to int8."""


def matmul_nbits(e: Emitter) -> Sequence[ir.Value]:
    """Emit MatMulNBits: blockwise DequantizeLinear and MatMul.

    Rows that end within a block are sliced after dequantization. Integers of 3 bits are written as
    4, and those in another order of columns, `g_idx`, in the order of their groups, as are the
    columns of A. With an accuracy level of 4 the MatMul bears the metadata `ACTIVATIONS`: a backend
    may quantize rows when it runs.
    """
    if e.get("weight_prepacked", 0):
        raise Unsupported("its weights are packed for another processor")
    bits, block = int(e.get("bits", 4)), int(e.get("block_size", 0))
    rows, columns = int(e.get("N", 0)), int(e.get("K", 0))
    if bits not in (2, 3, 4, 8):
        raise Unsupported(f"its weights have {bits} bits, and not 2, 3, 4 or 8")
    if block < 16 or block & (block - 1):
        raise Unsupported(f"its block_size is {block}, and not a power of 2 from 16 on")
    if rows <= 0 or columns <= 0:
        raise Unsupported(f"its weights are {rows} by {columns}")
    a, scales = e.required(0, "A"), e.required(2, "scales")
    dtype = e.dtype(a)
    if e.dtype(scales) != dtype:
        raise Unsupported("its scales are of another type than A")
    blocks = -(-columns // block)
    order = _order(e, columns, block)
    shape = rows, blocks * block
    if bits == 3 or order is not None:
        stored = _rewritten(e, bits, shape, block, order)
    else:
        stored = _reinterpret_bits(e, 1, "B", bits, shape)
    if order is not None:
        a = e.op("Gather", a, e.const(order), axis=-1)
    scales = _blocks_of_rows(e, scales, rows, blocks)
    zeros = e.input(3)
    if zeros is not None and e.dtype(zeros) != dtype:
        zeros = None
    if bits == 2 and zeros is None:  # no opset up to 24 dequantizes 2 bits
        numbers = _zero_points(e, bits, rows, blocks)
        zeros = e.weight("zero_points", ir.tensor(numbers.astype(dtype.numpy())))
    if zeros is not None:
        wide = e.reshape(e.cast(stored, dtype), rows, blocks, block)
        moved = e.op("Sub", wide, e.unsqueeze(_blocks_of_rows(e, zeros, rows, blocks), 2))
        matrix = e.reshape(e.op("Mul", moved, e.unsqueeze(scales, 2)), *shape)
    else:
        zero = e.weight("zero_points", _tensor(_zero_points(e, bits, rows, blocks), max(bits, 4)))
        matrix = e.op("DequantizeLinear", stored, scales, zero, axis=1, block_size=block)
    if blocks * block != columns:
        matrix = e.op("Slice", matrix, e.const([0]), e.const([columns]), e.const([1]))
    output = e.op("MatMul", a, e.transpose(matrix, 1, 0))
    node = output.producer()
    if node is not None and int(e.get("accuracy_level", 0)) == _INT8_ROWS:
        node.metadata_props[ACTIVATIONS] = "dynamic"
    bias = e.input(5)
    return [output if bias is None else e.op("Add", output, bias)]


def _order(e: Emitter, columns: int, block: int) -> np.ndarray | None:
    """Return the order that brings the columns of a group, `g_idx`, together; None for no other.

    Raises:
        Unsupported: a group has not as many columns as a block.
    """
    if e.input(4) is None:
        return None
    groups = _constant(e, 4, "g_idx").numpy().reshape(-1)[:columns].astype(np.int64)
    places = np.arange(columns) // block
    if groups.size != columns:
        raise Unsupported(f"its g_idx has {groups.size} elements, and not {columns}")
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], places):
        raise Unsupported(f"a group of its g_idx has not {block} columns")
    return None if np.array_equal(groups, places) else order


def _rewritten(
    e: Emitter, bits: int, shape: tuple[int, int], block: int, order: np.ndarray | None
) -> ir.Value:
    """Return the integers in another order, or of 3 bits, as those of 2, 4 or 8 bits."""
    tensor, (rows, width) = _constant(e, 1, "B"), shape
    if tensor.dtype != ir.DataType.UINT8 or tensor.nbytes != rows * width * bits // 8:
        raise Unsupported(f"its B is {list(tensor.shape.numpy())}, and not of {shape}")
    numbers = _unpack(tensor.numpy().reshape(rows, width // block, -1), bits).reshape(shape)
    if order is not None:
        numbers = np.concatenate([numbers[:, order], numbers[:, order.size :]], axis=1)
    return e.weight("B", _tensor(numbers, 4 if bits == 3 else bits))


def _blocks_of_rows(e: Emitter, value: ir.Value, rows: int, blocks: int) -> ir.Value:
    """Return scales or zero points as [rows, blocks]; older files store them flat."""
    return value if e.dims(value) == (rows, blocks) else e.reshape(value, rows, blocks)


def _zero_points(e: Emitter, bits: int, rows: int, blocks: int) -> np.ndarray:
    if e.input(3) is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    width = -(-blocks * bits // 8)
    tensor = _constant(e, 3, "zero_points")
    if tensor.nbytes != rows * width:
        raise Unsupported(f"its zero_points are {list(tensor.shape.numpy())}")
    return _unpack(tensor.numpy().reshape(rows, width), bits)[:, :blocks]


def _reinterpret_bits(
    e: Emitter, index: int, name: str, bits: int, shape: tuple[int, int]
) -> ir.Value:
    """Return the bytes of a constant reinterpreted as integers of `bits` bits."""
    tensor = _constant(e, index, name)
    if tensor.dtype != ir.DataType.UINT8 or tensor.nbytes != shape[0] * shape[1] * bits // 8:
        raise Unsupported(f"its {name} is {list(tensor.shape.numpy())}, and not of {shape}")

    return e.weight(name, ViewedTensor(tensor, _KINDS[bits], shape))


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack integers of `bits` bits along the last axis, low bits of a byte first."""
    if bits == 8:
        return packed
    single = np.unpackbits(packed, axis=-1, bitorder="little")
    count = single.shape[-1] // bits
    parts = single[..., : count * bits].reshape(*packed.shape[:-1], count, bits)
    return np.packbits(parts, axis=-1, bitorder="little")[..., 0]


def _tensor(numbers: np.ndarray, bits: int) -> ir.TensorProtocol:
    return ir.Tensor(np.ascontiguousarray(numbers).astype(_KINDS[bits].numpy()), dtype=_KINDS[bits])


def _constant(e: Emitter, index: int, name: str) -> ir.TensorProtocol:
    tensor = constant_tensor(e.required(index, name))
    if tensor is None or e.required(index, name).is_graph_input():
        raise Unsupported(f"its {name} is not constant")
    return tensor


def gather_block_quantized(e: Emitter) -> Sequence[ir.Value]:
    """Emit GatherBlockQuantized: gather packed rows and their scales, then dequantize the rows.

    A table of INT4 or UINT4 is a DequantizeLinear before the Gather, as backends pack embeddings.
    """
    data, positions = e.required(0, "data"), e.required(1, "indices")
    scales, zeros = e.required(2, "scales"), e.input(3)
    rank = len(e.dims(data))
    bits, block = int(e.get("bits", 4)), int(e.get("block_size", 128))
    axis, along = int(e.get("gather_axis", 0)), int(e.get("quantize_axis", 1))
    if rank != 2 or axis % rank != 0 or along % rank != 1:
        raise Unsupported("it does not look up rows of a matrix with blocks along them")
    if e.dtype(data) in (ir.DataType.INT4, ir.DataType.UINT4):
        matrix = e.op("DequantizeLinear", data, scales, zeros, axis=1, block_size=block)
        return [e.op("Gather", matrix, positions, axis=0)]
    if e.dtype(data) != ir.DataType.UINT8:
        raise Unsupported(f"its table is {e.dtype(data).name.lower()}, and not uint8 or of 4 bits")
    if bits not in (4, 8):
        raise Unsupported(f"its table has {bits} bits, and not 4 or 8")
    width, blocks = e.dims(data)[1], e.dims(scales)[1]
    if not isinstance(width, int) or not isinstance(blocks, int):
        raise Unsupported("the width of its table is not known")
    columns = width * 8 // bits
    if block < 16 or columns != blocks * block:
        raise Unsupported(f"{columns} columns are not {blocks} blocks of {block}")
    dtype, depth = e.dtype(scales), len(e.dims(positions))
    rows_of_data = e.op("Gather", data, positions, axis=0)
    rows_of_data = e.cast(rows_of_data, dtype)
    if bits == 4:
        # In floating point, which is exact here: backends have more kernels for it.
        high = e.op("Floor", e.op("Mul", rows_of_data, e.const(1 / 16, dtype)))
        low = e.op("Sub", rows_of_data, e.op("Mul", high, e.const(16, dtype)))
        rows_of_data = e.op("Concat", e.unsqueeze(low, -1), e.unsqueeze(high, -1), axis=-1)
    shape = [0] * depth
    numbers = e.reshape(rows_of_data, *shape, blocks, block)
    if zeros is None:
        zero = e.const(float(1 << (bits - 1)), dtype)
    else:
        found = _unpack(_constant(e, 3, "zero_points").numpy(), bits)[:, :blocks]
        table = e.weight("zero_points", ir.tensor(found.astype(dtype.numpy())))
        zero = e.unsqueeze(e.op("Gather", table, positions, axis=0), -1)
    scale = e.unsqueeze(e.op("Gather", scales, positions, axis=0), -1)
    output = e.op("Mul", e.op("Sub", numbers, zero), scale)
    return [e.reshape(output, *shape, columns)]


def matmul_integer_to_float(e: Emitter) -> Sequence[ir.Value]:
    """Emit MatMulIntegerToFloat: MatMulInteger, scaled, with a bias."""
    a, b = e.required(0, "A"), e.required(1, "B")
    output = e.op("MatMulInteger", a, b, e.input(4), e.input(5))
    scaled = e.op("Mul", e.required(2, "a_scale"), e.required(3, "b_scale"))
    output = e.op("Mul", e.cast(output, ir.DataType.FLOAT), scaled)
    bias = e.input(6)
    return [output if bias is None else e.op("Add", output, bias)]


def dynamic_quantize_matmul(e: Emitter) -> Sequence[ir.Value]:
    """Emit DynamicQuantizeMatMul: DynamicQuantizeLinear of A, then an int8 matmul."""
    a, scale, zero = e.ops("DynamicQuantizeLinear", e.required(0, "A"), outputs=3)
    output = e.op("MatMulInteger", a, e.required(1, "B"), zero, e.input(3))
    scaled = e.op("Mul", scale, e.required(2, "b_scale"))
    output = e.op("Mul", e.cast(output, ir.DataType.FLOAT), scaled)
    bias = e.input(4)
    return [output if bias is None else e.op("Add", output, bias)]


# FP4: a sign, two bits of exponent and one of mantissa, over the greatest of its numbers, 12;
# NF4: quantiles of a normal distribution (Dettmers et al., QLoRA, 2023, appendix E).
_HALF = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
_FP4 = np.array([*(x / 12 for x in _HALF), *(-x / 12 for x in _HALF)], np.float32)
_NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)


def matmul_bnb4(e: Emitter) -> Sequence[ir.Value]:
    """Emit MatMulBnb4: a MatMul whose weight is dequantized when it is packed.

    Raises:
        Unsupported: the matrix or its magnitudes are computed, or do not fit K and N.
    """
    columns, rows = int(e.get("K", 0)), int(e.get("N", 0))
    block, kind = int(e.get("block_size", 0)), int(e.get("quant_type", 0))
    if min(columns, rows, block) <= 0 or kind not in (0, 1):
        raise Unsupported(f"K {columns}, N {rows}, block_size {block} or quant_type {kind}")
    if not e.get("transB", 1):
        raise Unsupported("its B is not transposed")
    given = e.required(1, "B"), e.required(2, "absmax")
    tensors = [None if value.is_graph_input() else constant_tensor(value) for value in given]
    packed, magnitudes = tensors
    if packed is None or magnitudes is None:
        raise Unsupported("its B or absmax is not constant")
    count = rows * columns
    if packed.size != -(-count // 2) or magnitudes.size != -(-count // block):
        raise Unsupported(f"B or absmax has not the elements of {rows} by {columns} numbers")
    table = _NF4 if kind else _FP4
    dtype = e.dtype(e.required(0, "A"))

    def numbers() -> ir.TensorProtocol:
        positions = packed.numpy().reshape(-1)
        both = np.stack([positions >> 4, positions & 15], -1).reshape(-1)[:count]
        scale = np.repeat(magnitudes.numpy().reshape(-1).astype(np.float32), block)[:count]
        return ir.tensor((table[both] * scale).reshape(rows, columns).astype(dtype.numpy()))

    shape = ir.Shape([rows, columns])
    matrix = e.weight("B", ir.LazyTensor(numbers, dtype=dtype, shape=shape, cache=True))
    return [e.op("MatMul", e.required(0, "A"), e.transpose(matrix, 1, 0))]
