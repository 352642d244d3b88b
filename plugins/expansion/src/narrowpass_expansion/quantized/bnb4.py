"""Matmuls with weights in FP4 and NF4 of bitsandbytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_ir.constants import constant_tensor

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
