"""Arithmetic of a matmul with a constant matrix: candidates in order of preference.

The dtype of the arithmetic follows from the stored dtype of the matrix, the number of rows, and the
accumulators and activations that the model requests. Each choice is a problem of the kernel table,
which selects the kernel. Where packing finds that constants do not fit a kernel, the next choice is
used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.own.gemv import MAX_ROWS, UNPACKED
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock, PerToken
from narrowpass_xnn_cpu.native.table import select
from narrowpass_xnn_cpu.native.table.matmul import bf16_reject_reason, quantizes_rows_once
from narrowpass_xnn_cpu.native.target import Target

HALF_ROWS = 8
"""Number of rows up to which a matmul with a float16 matrix is computed in float16.

Few rows are bound by reading the matrix, and half as many bytes are read: 1.2 to 2.9 times faster
than float32 for matrices of `HALF_SIZE` and more (`benchmarks/kernels/fp16_gemm.py`). With more
rows the conversions in the kernel cost more than that. For bfloat16 matrices see the kernel table.
"""

HALF_SIZE = 1 << 19
"""Elements of a float16 matrix from which float16 arithmetic is faster."""

_FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Choice:
    """A problem that a matmul with a constant matrix may be computed as.

    Attributes:
        problem: of the kernel table.
        precision: of the arithmetic, as reported; empty for float32 of a float32 matrix.
        few_rows: replaces `problem` up to `HALF_ROWS` rows, where their number is not known before
            a run; None for nothing.
        is_required: whether constants that do not fit are an error and the next choice is not
            tried, since another operation has quantized the rows.
        is_explained: whether the precision of the next choice reports why this one did not fit.
        reads_panels: whether the choice is valid only if the few-rows kernel can read the packed
            panels.
    """

    problem: Matmul
    precision: str = ""
    few_rows: Matmul | None = None
    is_required: bool = False
    is_explained: bool = False
    reads_panels: bool = False


def choices(
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    target: Target,
    *,
    rows: int | None = None,
    accumulate: str = "",
    activations: str = "",
    embedding: bool = False,
    blocks_fit: bool = True,
    deterministic: bool = False,
) -> Iterator[Choice]:
    """Yield the problems that a matmul may be computed as, in order of preference.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        bias: float32 [O], or None.
        epilogue: only a clamp unless `fuses_epilogue`.
        target: the processor.
        rows: their number, if it is known.
        accumulate: the requested dtype of accumulators; empty if the model requests none.
        activations: ``dynamic`` for dynamic per-token quantization; else empty.
        embedding: whether the stored matrix is in memory anyway, as a tied embedding.
        blocks_fit: whether packing has not found yet that a block-quantized matrix does not fit.
        deterministic: see `Numerics`.
    """
    if blocks_fit and _blocks(kernel) is not None:
        yield from _in_blocks(kernel, bias, epilogue, target, activations, deterministic)
    # Packing reads [C, O] and [O, C]: the order in which the matrix is stored needs no copy.
    transposed = kernel.permuted_from is None
    source = kernel if transposed else kernel.transpose(1, 0)
    precision = "float32: its matrix is not int8" if activations == "dynamic" else ""
    if kernel.stored:
        precision = f"float32: its {kernel.stored} weights are upcast when they are packed"
    if kernel.quantized is not None:
        yield from _int8(kernel, bias, epilogue, target, activations)
        yield from _in_blocks(kernel, bias, epilogue, target, activations, deterministic)
        precision, embedding = "float32", False
    problem = Matmul(source, bias, epilogue, transposed, rows=rows)
    wide = dataclasses.replace(
        problem,
        matrix=source.cast(_FLOAT32),
        in_memory=embedding and kernel.dtype == _FLOAT32,
    )
    if kernel.dtype == BFLOAT16:
        if not target.has_bf16 or not bf16_reject_reason(rows, target):
            yield Choice(problem, "bfloat16")
        yield Choice(wide, "float32")
    elif kernel.dtype == np.float16:
        half = _half(problem, wide, target, accumulate)
        yield Choice(wide, "float32") if deterministic else half
    else:
        is_table = wide.in_memory and select(wide, target).kernel is UNPACKED
        if not is_table and rows is not None and rows <= MAX_ROWS and bias is None:
            yield from _stored_half(kernel, target, precision)
        yield Choice(wide, precision)


def _in_blocks(
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    target: Target,
    activations: str,
    deterministic: bool,
) -> Iterator[Choice]:
    """Yield the choice for a matrix that is packed in blocks: the elements as they are stored.

    It is required where the kernel for the upcast matrix lacks the epilogue.
    """
    if kernel.blocks is None or not kernel.blocks.transposed:
        return
    problem, precision = block_problem(
        kernel, bias, epilogue, activations, deterministic=deterministic
    )
    required = not epilogue.is_clamp and not target.has_fp32_gemm
    yield Choice(problem, precision, is_required=required, is_explained=True)


def block_problem(
    kernel: Weight,
    bias: Weight | None,
    epilogue: Epilogue,
    activations: str,
    *,
    deterministic: bool = False,
) -> tuple[Matmul, str]:
    """Return the problem of a block-quantized matrix, and the precision as reported.

    Args:
        kernel: [C, O], or several, with `Weight.blocks`.
        bias: float32 [O], or None.
        epilogue: of the accumulators.
        activations: ``dynamic`` for dynamic quantization of rows; else empty.
        deterministic: see `Numerics`.

    Raises:
        BackendError: it is not block-quantized.
    """
    stored = kernel.blocks
    if stored is None:
        raise BackendError("a matrix is not block-quantized")
    dynamic, is_float8 = activations == "dynamic", stored.element.startswith("float8")
    quantizes = dynamic and not is_float8
    note = "weights, rows in blocks of int8" if quantizes else "weights"
    if dynamic and is_float8:
        note = "weights, rows in float32: no int8 kernel takes float8"
    operand = PerBlock(rounds=not deterministic) if quantizes else None
    return Matmul(stored, bias, epilogue, operand=operand), f"{stored.element} ({note})"


def _int8(
    kernel: Weight, bias: Weight | None, epilogue: Epilogue, target: Target, activations: str
) -> Iterator[Choice]:
    matrix = kernel.quantized
    if matrix is None:
        return
    transposed = matrix.integers.permuted_from is None
    matrix = matrix if transposed else matrix.transpose((1, 0))
    problem = Matmul(matrix, bias, epilogue, transposed)
    if activations == "dynamic":
        per_token = dataclasses.replace(problem, operand=PerToken())
        required = shares_quantized_rows(kernel, activations, target)
        yield Choice(per_token, "int8 (rows too)", is_required=required, is_explained=True)
    yield Choice(problem, "int8 (weights)", is_explained=True)


def _half(half: Matmul, wide: Matmul, target: Target, accumulate: str) -> Choice:
    """Return the choice for a matrix that is float16 in the model."""
    inputs, outputs = half.sizes
    pays = inputs * outputs >= HALF_SIZE and target.has_float16_gemm
    if not pays or (accumulate == "float32" and not target.float16_accumulates_in_float32):
        return Choice(wide, "float32")
    if half.rows is None:
        return Choice(wide, f"float16 up to {HALF_ROWS} rows, else float32", few_rows=half)
    return Choice(half, "float16") if half.rows <= HALF_ROWS else Choice(wide, "float32")


def _stored_half(kernel: Weight, target: Target, precision: str) -> Iterator[Choice]:
    """Yield the choice for a float32 matrix whose elements are stored exactly as float16.

    Only the few-rows kernel computes float32 rows times a float16 matrix in float32.
    """
    narrow = kernel.narrow
    if narrow is None or narrow.dtype != np.float16 or not target.has_float16_gemm:
        return
    transposed = narrow.permuted_from is None
    source = narrow if transposed else narrow.transpose(1, 0)
    yield Choice(Matmul(source, transposed=transposed), precision, reads_panels=True)


def _blocks(kernel: Weight) -> Blocks | None:
    """Return what a matrix [C, O] is stored as, if that is blocks along the columns alone.

    One of 8 bits with a scale for each column may be taken so, but has kernels of its own.
    """
    blocks = kernel.blocks
    alone = blocks is not None and blocks.transposed and kernel.quantized is None
    return blocks if alone else None


def joins_rows(kernel: Weight, activations: str) -> str:
    """Return a key: matmuls of the same rows whose keys are equal may be computed by one call.

    Empty where no kernel does. Matrices stay packed as they are for matmuls of their own.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        activations: ``dynamic`` for dynamic per-token quantization; else empty.
    """
    blocks = _blocks(kernel)
    if blocks is None:
        return ""
    return f"{blocks.element} {activations}, {blocks.columns} in blocks of {blocks.size}"


def fuses_epilogue(kernel: Weight, rows: int | None, target: Target) -> bool:
    """Return whether the kernel of a matmul supports all epilogues.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        rows: their number, if it is known.
        target: the processor.
    """
    if _blocks(kernel) is not None:
        return True
    if kernel.dtype == BFLOAT16 and target.has_bf16:
        return not bf16_reject_reason(rows, target) or target.has_fp32_gemm
    return kernel.dtype == _FLOAT32 and kernel.quantized is None and target.has_fp32_gemm


def shares_quantized_rows(kernel: Weight, activations: str, target: Target) -> bool:
    """Return whether rows are quantized by a separate operation, which several matmuls share.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        activations: ``dynamic`` for dynamic per-token quantization; else empty.
        target: the processor.
    """
    matrix = kernel.quantized
    if activations != "dynamic" or matrix is None or _blocks(kernel) is not None:
        return False
    return quantizes_rows_once(matrix, kernel.shape[1], target)


def is_gemm(choice: Choice, target: Target) -> bool:
    """Return whether the own float32 GEMM computes a choice for every number of rows."""
    if choice.few_rows is not None or choice.problem.dtypes != "float32 x float32":
        return False
    return select(choice.problem, target).kernel is fp32.MATMUL
