"""Matmuls with block-quantized weights of 4 or 8 bits, such as those of MatMulNBits.

The matrix is never upcast as a whole. Up to 4 rows, where bandwidth is the limit, weights are
dequantized in registers; with more rows, a panel of 32 columns is dequantized into scratch memory,
one block of K at a time.
"""

from __future__ import annotations

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Blocks, Weight, digest
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.problems.bounds import checked_range, checked_shape, float32
from narrowpass_xnn_cpu.native.problems.matmul import Matmul


def _checked(problem: Matmul) -> Blocks:
    """Check the shapes of a block-quantized matrix [O, C], its scales and the bias; return it."""
    matrix, bias = problem.matrix, problem.bias
    if not isinstance(matrix, Blocks):
        raise BackendError(f"a matmul of {problem.dtypes} has no block-quantized matrix")
    outputs, width = checked_shape(matrix.integers.shape, 2)
    inputs, block, bits = matrix.columns, matrix.size, matrix.bits
    blocks = -(-inputs // block)
    if bits not in (4, 8) or block < 8 or block % 8 or width != blocks * block:
        raise BackendError(f"blocks of {block} do not fit {inputs} inputs of {bits} bits")
    for given in (matrix.scale, *((matrix.zero,) if matrix.zero is not None else ())):
        if given.shape != (outputs, blocks):
            raise BackendError(f"{list(given.shape)} are not {blocks} for each of {outputs}")
    if bias is not None and (bias.shape != (outputs,) or bias.dtype != np.float32):
        raise BackendError(f"a bias must be float32[{outputs}], not {list(bias.shape)}")
    checked_range(problem.epilogue.limits)
    return matrix


def _pack(problem: Matmul) -> Packing:
    matrix = _checked(problem)
    inputs, outputs = problem.sizes
    layout, lib = (outputs, inputs, matrix.size, matrix.bits), extension().lib
    integers = matrix.integers.then(
        "as bytes", lambda array: array.astype(np.uint8), dtype=np.dtype(np.uint8)
    )
    return Packing(
        layout,
        integers,
        problem.bias,
        _scales_and_zeros(matrix),
        lib.np_nbits_packed_size(*layout),
        lambda to, k, b, s: lib.np_nbits_pack(*layout, k, s, b, to),
        matrix,
    )


def _plan(problem: Matmul, packing: Packing, run: RunSizes) -> Fields:
    lib, rows, (inputs, outputs) = extension().lib, run.image[1], problem.sizes
    few = rows <= lib.NP_NBITS_GEMV_ROWS
    low, high = map(float32, problem.epilogue.limits)
    return {
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "block": packing.form.size,
        "bits": packing.form.bits,
        "low": low,
        "high": high,
        "thread_scratch": 0 if few else (lib.NP_NBITS_K_BLOCK + rows) * lib.NP_NBITS_COLUMNS,
    }


def _scales_and_zeros(matrix: Blocks) -> Weight:
    """Return float32 [2, O, blocks]: scales, then zero points."""
    scale, zero = matrix.scale, matrix.zero

    def load() -> Array:
        scales = scale.array().astype(np.float32)
        zeros = np.zeros_like(scales) if zero is None else zero.array().astype(np.float32)
        return np.stack([scales, zeros])

    parts = [scale.identity] if zero is None else [scale.identity, zero.identity]
    identity = digest("scales and zero points", *parts) if all(parts) else ""
    return Weight((2, *scale.shape), np.dtype(np.float32), identity, load, scale.drop)


MATMUL = MatmulKernel(
    "fully connected",
    "NP_NBITS",
    "nbits",
    "NP_NBITS_LAYOUT",
    "np_nbits_params",
    _pack,
    _plan,
    unit=4,
)
