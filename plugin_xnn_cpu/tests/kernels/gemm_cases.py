"""Matmuls. Operands are small whole numbers, scales powers of two: accumulators are exact.

So results equal numpy's, bit for bit, also where rows or accumulators are rounded to 16 bits.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
from edge_kit import EDGES, SOME, Cases

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn

CASES = Cases()
FEW = (1, 2, 3, 4)
ROWS = (*FEW, 5, 6, 7, 8, 11, 12, 13, 17)
"""Around the rows of micro-kernels (MR of 4 to 12), and of GEMV."""
SIZES = {"outputs": EDGES[1:], "inputs": (*SOME, 63, 64, 65, 127, 129), "rows": ROWS}
LIMITS = {"limits": ((-np.inf, np.inf), (0.0, np.inf), (-5.0, 40.0))}


def whole(kernel, *shape, most=2, dtype=np.float32):
    """Return whole numbers up to `most`; others where only bits count."""
    if kernel.only_bits and dtype == np.float32:
        return most * kernel.floats(*shape)
    return kernel.rng.integers(-most, most + 1, shape).astype(dtype)


def scales_of(kernel, count):
    if kernel.only_bits:
        return kernel.rng.uniform(0.05, 1, count).astype(np.float32)
    return np.float32(2.0) ** kernel.rng.integers(-4, 1, count).astype(np.float32)


def finish(kernel, operator, x, expected, params=None):
    """Reshape, run and compare with what is expected, in float64, before it is clamped."""
    params = operator.reshape(len(x), kernel.pool) if params is None else params
    options = {"operator": operator, "workspace": operator.workspace}
    kernel.expect(params, [x], np.asarray(expected, np.float32), **options)


def floats(kernel, create, outputs, inputs, rows, limits, dtype=np.float32):
    x, matrix = whole(kernel, rows, inputs), whole(kernel, outputs, inputs)
    bias = whole(kernel, outputs)
    problem = Matmul(Weight.of(matrix.astype(dtype)), Weight.of(bias), Epilogue(limits=limits))
    finish(kernel, create(problem), x, np.clip(x @ matrix.T + bias, *limits))


@CASES.of("NP_FULLY_CONNECTED", **SIZES, **LIMITS)
def fully_connected(kernel, outputs, inputs, rows, limits):
    floats(kernel, xnn.F32.create, outputs, inputs, rows, limits)


@CASES.of("NP_FULLY_CONNECTED_F16", **SIZES, **LIMITS)
def fully_connected_f16(kernel, outputs, inputs, rows, limits):
    if xnn.has_float16_gemm():
        floats(kernel, xnn.F16.create, outputs, inputs, rows, limits, np.float16)


@functools.cache
def has_bfloat16():
    """Return whether XNNPACK has kernels of bfloat16 for this processor."""
    try:
        xnn.BF16.create(Matmul(Weight.of(np.ones((1, 1), ml_dtypes.bfloat16))))
    except BackendError:
        return False
    return True


@CASES.of("NP_FULLY_CONNECTED_BF16", **SIZES, **LIMITS)
def fully_connected_bf16(kernel, outputs, inputs, rows, limits):
    if has_bfloat16():
        floats(kernel, xnn.BF16.create, outputs, inputs, rows, limits, ml_dtypes.bfloat16)


def int8_matrix(kernel, outputs, inputs):
    """Return an int8 matrix with scales, as it is stored and in float64."""
    integers, scales = kernel.bytes(outputs, inputs), scales_of(kernel, outputs)
    integers = np.maximum(integers, -127)
    stored = Quantized(Weight.of(integers), Weight.of(scales), None, 0)
    return stored, integers * scales[:, None].astype(np.float64), integers, scales


@CASES.of("NP_FULLY_CONNECTED_INT8", **SIZES, **LIMITS)
def int8_weights(kernel, outputs, inputs, rows, limits):
    x, bias = whole(kernel, rows, inputs), whole(kernel, outputs)
    stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
    operator = xnn.INT8.create(Matmul(stored, Weight.of(bias), Epilogue(limits=limits)))
    finish(kernel, operator, x, np.clip(x @ matrix.T + bias, *limits))


def full_range(kernel, rows, inputs):
    """Return rows that are quantized to themselves: whole numbers from -128 to 127, both there."""
    x = kernel.bytes(rows, inputs).astype(np.float32)
    x[:, 0] = 127
    x[:, -1] = -128
    return x


@CASES.of("NP_FULLY_CONNECTED_INT8_ROWS", **{**SIZES, "inputs": SIZES["inputs"][1:]}, **LIMITS)
def int8_rows(kernel, outputs, inputs, rows, limits):
    x, bias = full_range(kernel, rows, inputs), whole(kernel, outputs)
    stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
    problem = Matmul(stored, Weight.of(bias), Epilogue(limits=limits), operand=PerToken())
    finish(kernel, xnn.PER_TOKEN.create(problem), x, np.clip(x @ matrix.T + bias, *limits))


@CASES.of("NP_FULLY_CONNECTED_S8", **SIZES, zero=(-128, 0, 5))
def int8_requantized(kernel, outputs, inputs, rows, zero):
    x, bias = kernel.bytes(rows, inputs), whole(kernel, outputs, most=999, dtype=np.int32)
    stored, _, integers, scales = int8_matrix(kernel, outputs, inputs)
    result = Requantized(Quantization(2.0**-3, zero), Quantization(2.0**5, -3), (-128, 127))
    operator = xnn.S8.create(Matmul(stored, Weight.of(bias), result))
    accumulators = (x.astype(np.int64) - zero) @ integers.T.astype(np.int64) + bias
    expected = np.clip(np.rint(accumulators * scales * 2.0**-8) - 3, -128, 127).astype(np.int8)
    params = operator.reshape(rows, kernel.pool)
    options = {"operator": operator, "workspace": operator.workspace}
    kernel.expect(params, [x], expected, **options)


def int8_to_floats(kernel, create, outputs, inputs, rows, limits, zero):
    x, bias = kernel.bytes(rows, inputs), whole(kernel, outputs)
    stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
    problem = Matmul(
        stored,
        Weight.of(bias),
        Epilogue(limits=limits),
        operand=Quantization(0.5, zero),
    )
    operator = create(problem)
    expected = np.clip((x.astype(float) - zero) * 0.5 @ matrix.T + bias, *limits)
    finish(kernel, operator, x, expected)


ZERO = {"zero": (-128, 0, 5)}


@CASES.of("NP_FULLY_CONNECTED_S8_F32", **SIZES, **LIMITS, **ZERO)
def int8_and_floats(kernel, outputs, inputs, rows, limits, zero):
    int8_to_floats(kernel, xnn.S8_F32.create, outputs, inputs, rows, limits, zero)
