"""Our own matmuls; operands as in `gemm_cases`, so that results are exact."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from edge_kit import EDGES, SOME, Cases
from gemm_cases import (
    LIMITS,
    ROWS,
    SIZES,
    ZERO,
    finish,
    full_range,
    int8_matrix,
    int8_to_floats,
    scales_of,
    whole,
)
from int8_kernels_kit import run_rows

from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native.own import batched, block_quantized, fp32, gemv, int8_matmul
from narrowpass_xnn_cpu.native.own.upcast import UpcastMatmul
from narrowpass_xnn_cpu.native.problems.convolution import DynamicScales
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock, PerToken
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn

CASES = Cases()


@CASES.of("NP_INT8_GEMM", **SIZES, **LIMITS, **ZERO)
def int8_gemm(kernel, outputs, inputs, rows, limits, zero):
    int8_to_floats(kernel, int8_matmul.MATMUL.create, outputs, inputs, rows, limits, zero)


@CASES.of("NP_INT8_GEMM", **SIZES, **ZERO)
def int8_accumulators(kernel, outputs, inputs, rows, zero):
    x = kernel.bytes(rows, inputs)
    stored, _, integers, _ = int8_matrix(kernel, outputs, inputs)
    result = DynamicScales(raw=True, zero_point=zero)
    operator = int8_matmul.MATMUL.create(Matmul(stored, None, result))
    params = operator.reshape(rows, kernel.pool)
    expected = (x.astype(np.int64) - zero) @ integers.T.astype(np.int64)
    given = [x, np.array([1], np.float32), np.array([zero], np.int8)]
    kernel.expect(
        params, given, expected.astype(np.int32), operator=operator, workspace=operator.workspace
    )


@CASES.of("NP_INT8_ROWS", **SIZES)
def quantized_rows(kernel, outputs, inputs, rows):
    """Its result is what the kernel for int8 GEMMs reads, and seen through that."""
    x = full_range(kernel, rows, inputs) if inputs > 1 else whole(kernel, rows, 1, most=1)
    stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
    operator = int8_matmul.PER_TOKEN.create(Matmul(stored, None, operand=PerToken()))
    operator.reshape(rows, kernel.pool)
    got = run_rows(operator, x, (rows, outputs), kernel.threads)
    kernel.bits.append(got.tobytes())
    if not kernel.only_bits:
        np.testing.assert_allclose(got, x @ matrix.T, rtol=1e-6)


@CASES.of("NP_GEMM_INT8_WEIGHTS", **SIZES, **LIMITS)
def upcast(kernel, outputs, inputs, rows, limits):
    x, bias = whole(kernel, rows, inputs), whole(kernel, outputs)
    stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
    with WeightsCache().begin() as session:
        panels = xnn.create(Matmul(stored, Weight.of(bias)), session).panels()
    if panels is not None:  # XNNPACK packs them so for AVX-512
        operator = UpcastMatmul(panels, limits)
        finish(kernel, operator, x, np.clip(x @ matrix.T + bias, *limits))


@CASES.of(
    "NP_GEMV", **{**SIZES, "rows": (1, 2, 3, 4)}, kind=("float32", "int8", "unpacked"), **LIMITS
)
def few_rows(kernel, outputs, inputs, rows, kind, limits):
    x, matrix, bias = (
        whole(kernel, *shape) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    epilogue = Epilogue(limits=limits)
    with WeightsCache().begin() as session:
        if kind == "unpacked":
            bias = 0 * bias
            operator = gemv.UNPACKED.create(Matmul(Weight.of(matrix), None, epilogue))
        elif kind == "float32":
            problem = Matmul(Weight.of(matrix), Weight.of(bias), epilogue)
            operator = fp32.MATMUL.create(problem, session).gemv(epilogue)
        else:
            stored, matrix, *_ = int8_matrix(kernel, outputs, inputs)
            problem = Matmul(stored, Weight.of(bias), epilogue)
            operator = xnn.create(problem, session).gemv(epilogue)
    if operator is not None:  # XNNPACK packs otherwise for so many outputs, or for this processor
        finish(kernel, operator, x, np.clip(x @ matrix.T + bias, *limits))


@CASES.of(
    "NP_MATMUL",
    columns=EDGES[1:],
    depth=(*SOME, 0, 63, 64, 65, 511, 513),
    rows=(*ROWS, 47, 48, 49),
    batch=((1, 1), (1, 3), (2, 1)),
    turned=("", "a", "b", "ab"),
    shared=(False, True),
    bias=(False, True),
    alpha=(1.0, 0.5),
    deterministic=(False, True),
)
def matmul(kernel, columns, depth, rows, batch, turned, shared, bias, alpha, deterministic):
    """Of two operands that are read by strides: transposed, or one matrix for the whole batch."""
    a_shape = (*batch, depth, rows) if "a" in turned else (*batch, rows, depth)
    b_batch = (1, 1) if shared else batch
    b_shape = (*b_batch, columns, depth) if "b" in turned else (*b_batch, depth, columns)
    a, b, added = whole(kernel, *a_shape), whole(kernel, *b_shape), whole(kernel, columns)
    views = [x.swapaxes(2, 3) if name in turned else x for x, name in ((a, "a"), (b, "b"))]

    def operand(x, view, lead):
        steps = [step // 4 for step in view.strides]
        whole = [0 if size == 1 else step for size, step in zip(lead, steps, strict=False)]
        return batched.Operand((0, 0, *whole), steps[2], steps[3])

    exact = views[0].astype(float) @ views[1] * alpha + (added if bias else 0)
    expected = exact.astype(np.float32)
    out = batched.Operand((0, 0, batch[1] * rows * columns, rows * columns), columns, 1)
    params, workspace = batched.matmul(
        batched.Sizes((1, 1, *batch), rows, depth, columns),
        operand(a, views[0], batch),
        operand(b, views[1], b_batch),
        out,
        alpha=alpha,
        bias=bias,
        threads=kernel.threads,
        deterministic=deterministic,
    )
    kernel.expect(params, [a, b, *([added] if bias else [])], expected, workspace=workspace)


def blocks_of(kernel, outputs, inputs, size, bits, matrices=1):
    """Return a matrix of few bits in blocks, as it is stored and in float64."""
    count, dtype = -(-inputs // size), {4: ml_dtypes.uint4, 8: np.uint8}[bits]
    integers = kernel.rng.integers(0, 1 << bits, (outputs, inputs))
    scales, zero = scales_of(kernel, (outputs, count)), 1 << (bits - 1)
    stored = Blocks(
        Weight.of(integers.astype(dtype)),
        Weight.of(scales),
        None,
        size,
        inputs,
        bits,
        zero,
        matrices=matrices,
    )
    return stored, (integers - zero) * np.repeat(scales, size, 1)[:, :inputs].astype(float)


NBITS = {**SIZES, "size": (16, 32, 64), "bits": (4, 8), "quantized": (False, True)}


def block_rows(kernel, rows, inputs, size, quantized):
    """Return whole numbers; where blocks are quantized, the steps are 1."""
    x = whole(kernel, rows, inputs, most=20)
    if quantized:
        x[:, ::size] = 127
    return x


@CASES.of("NP_NBITS", **NBITS, **LIMITS)
def few_bits(kernel, outputs, inputs, rows, size, bits, quantized, limits):
    x, bias = block_rows(kernel, rows, inputs, size, quantized), whole(kernel, outputs)
    stored, matrix = blocks_of(kernel, outputs, inputs, size, bits)
    problem = Matmul(
        stored,
        Weight.of(bias),
        Epilogue(limits=limits),
        operand=PerBlock() if quantized else None,
    )
    operator = block_quantized.MATMUL.create(problem)
    finish(kernel, operator, x, np.clip(x @ matrix.T + bias, *limits))


@CASES.of("NP_NBITS_JOINED", **NBITS, second=(1, 31, 32, 33, 65), gated=(False, True))
def joined(kernel, outputs, inputs, rows, size, bits, quantized, second, gated):
    x = block_rows(kernel, rows, inputs, size, quantized)
    found = [
        blocks_of(kernel, count, inputs, size, bits)
        for count in (outputs, outputs if gated else second)
    ]
    operand = PerBlock() if quantized else None
    matmuls = [
        block_quantized.MATMUL.create(Matmul(stored, operand=operand)) for stored, _ in found
    ]
    first, other = (x @ matrix.T for _, matrix in found)
    expected = first * other if gated else np.concatenate([first.reshape(-1), other.reshape(-1)])
    operator = block_quantized.JoinedMatmul(matmuls, gated=gated)
    finish(kernel, operator, x, expected)


@CASES.of("NP_NBITS_JOINED", **NBITS, count=(1, 2, 3), shared=(False, True))
def stacked(kernel, outputs, inputs, rows, size, bits, quantized, count, shared):
    """Experts: several matrices in one, of the same rows or of rows of their own."""
    sets = 1 if shared else count
    x = block_rows(kernel, sets * rows, inputs, size, quantized)
    stored, matrix = blocks_of(kernel, count * outputs, inputs, size, bits, count)
    operator = block_quantized.StackedMatmul(
        Matmul(stored, operand=PerBlock() if quantized else None), None
    )
    params = operator.reshape(rows, kernel.pool, shared_rows=shared)
    expected = x.reshape(sets, rows, inputs) @ matrix.reshape(count, outputs, inputs).swapaxes(1, 2)
    finish(kernel, operator, x, expected, params)


@CASES.of(
    "NP_NBITS_GATHER",
    inputs=EDGES[1:],
    count=EDGES,
    outputs=(1, 2, 31, 32, 33, 64, 65),
    size=(16, 32, 64),
    bits=(4, 8),
    index_size=(4, 8),
)
def embedding(kernel, inputs, count, outputs, size, bits, index_size):
    stored, matrix = blocks_of(kernel, outputs, inputs, size, bits)
    indices = kernel.rng.integers(-outputs, outputs, count).astype(f"int{8 * index_size}")
    packed = block_quantized.BlockEmbedding(stored, None)  # the parameters point into it
    params = packed.params(count, index_size)
    kernel.expect(params, [indices], matrix[indices].astype(np.float32))
