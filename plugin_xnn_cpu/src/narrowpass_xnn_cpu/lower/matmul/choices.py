"""Which kernels may compute a matmul with a constant matrix, in order of preference.

The dtype of the arithmetic follows from how the model stores the matrix, from how many rows there
are, and from what the model asks of accumulators and activations. Each choice is a problem of the
kernel table, which selects the kernel. Where constants turn out not to fit a kernel when they are
packed, the next choice computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.own.few_rows import MOST_ROWS, TABLE
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock, PerToken
from narrowpass_xnn_cpu.native.table import select
from narrowpass_xnn_cpu.native.table.matmul import bf16_passed_over, quantizes_rows_before
from narrowpass_xnn_cpu.native.target import Target

HALF_ROWS = 8
"""Up to so many rows, a matmul with a float16 matrix is computed in float16.

Reading the matrix takes longest there, and half as many bytes are read: 1.2 to 2.9 times faster
than float32 for matrices of `HALF_SIZE` and more (`benchmarks/narrow_products.py`). With more rows
the conversions in the kernel cost more than that. For bfloat16 matrices see the kernel table.
"""

HALF_SIZE = 1 << 19
"""Elements of a float16 matrix from which computing in float16 pays at all."""

_FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Choice:
    """A problem that a matmul with a constant matrix may be computed as.

    Attributes:
        problem: as the kernel table takes it.
        precision: of the arithmetic, for people; empty for float32 of a float32 matrix.
        few_rows: computed in place of `problem` up to `HALF_ROWS` rows, where their number is not
            known before a run; None for nothing.
        is_required: whether constants that do not fit are an error, and not left to the next
            choice: rows are quantized before.
        is_explained: whether the precision of the next choice says why this one did not fit.
        reads_panels: whether the kernel for few rows is to read the packed panels: the choice is
            none where it cannot.
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
) -> Iterator[Choice]:
    """Yield the problems that a matmul may be computed as, in order of preference.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        bias: float32 [O], or None.
        epilogue: nothing but a clamp where `fuses_epilogue` says no.
        target: the processor.
        rows: how many there are, where that is known.
        accumulate: the dtype that accumulators are to have; empty where the model says nothing.
        activations: ``dynamic`` where rows are to be quantized too; empty otherwise.
        embedding: whether the matrix is in memory as it is stored anyway: its rows are looked up.
    """
    if _blocks(kernel) is not None:
        yield from _in_blocks(kernel, bias, epilogue, activations)
        return
    # A matrix is packed from either order of axes: as it is stored, it needs no copy.
    transposed = kernel.moved is None
    source = kernel if transposed else kernel.transpose(1, 0)
    precision = "float32: its matrix is not int8" if activations == "dynamic" else ""
    if kernel.quantized is not None:
        yield from _int8(kernel, bias, epilogue, target, activations)
        yield from _in_blocks(kernel, bias, epilogue, activations)
        precision, embedding = "float32", False
    problem = Matmul(source, bias, epilogue, transposed, rows=rows)
    wide = dataclasses.replace(
        problem,
        matrix=source.cast(_FLOAT32),
        in_memory=embedding and kernel.dtype == _FLOAT32,
    )
    if kernel.dtype == BFLOAT16:
        if not target.has_bf16 or not bf16_passed_over(rows, target):
            yield Choice(problem, "bfloat16")
        yield Choice(wide, "float32")
    elif kernel.dtype == np.float16:
        yield _half(problem, wide, target, accumulate)
    else:
        is_table = wide.in_memory and select(wide, target).kernel is TABLE
        if not is_table and rows is not None and rows <= MOST_ROWS and bias is None:
            yield from _stored_half(kernel, target, precision)
        yield Choice(wide, precision)


def _in_blocks(
    kernel: Weight, bias: Weight | None, epilogue: Epilogue, activations: str
) -> Iterator[Choice]:
    """Yield the choice for a matrix that is packed in blocks: the integers as they are stored."""
    stored = kernel.blocks
    if stored is None or not stored.transposed:
        return
    quantizes = activations == "dynamic"
    problem = Matmul(stored, bias, epilogue, operand=PerBlock() if quantizes else None)
    rows_too = "weights, rows in blocks of int8" if quantizes else "weights"
    yield Choice(problem, f"int{stored.bits} ({rows_too})")


def _int8(
    kernel: Weight, bias: Weight | None, epilogue: Epilogue, target: Target, activations: str
) -> Iterator[Choice]:
    matrix = kernel.quantized
    if matrix is None:
        return
    transposed = matrix.integers.moved is None
    matrix = matrix if transposed else matrix.transpose((1, 0))
    problem = Matmul(matrix, bias, epilogue, transposed)
    if activations == "dynamic":
        per_token = dataclasses.replace(problem, operand=PerToken())
        required = takes_quantized_rows(kernel, activations, target)
        yield Choice(per_token, "int8 (rows too)", is_required=required, is_explained=True)
    yield Choice(problem, "int8 (weights)", is_explained=True)


def _half(half: Matmul, wide: Matmul, target: Target, accumulate: str) -> Choice:
    """Return the choice for a matrix that is stored as float16."""
    inputs, outputs = half.sizes
    pays = inputs * outputs >= HALF_SIZE and target.has_half_gemm
    if not pays or (accumulate == "float32" and not target.half_accumulates_wide):
        return Choice(wide, "float32")
    if half.rows is None:
        return Choice(wide, f"float16 up to {HALF_ROWS} rows, else float32", few_rows=half)
    return Choice(half, "float16") if half.rows <= HALF_ROWS else Choice(wide, "float32")


def _stored_half(kernel: Weight, target: Target, precision: str) -> Iterator[Choice]:
    """Yield the choice for a matrix of float32 that is stored as float16: each is exact.

    The kernel for few rows alone multiplies it with rows of float32, in float32.
    """
    narrow = kernel.narrow
    if narrow is None or narrow.dtype != np.float16 or not target.has_half_gemm:
        return
    transposed = narrow.moved is None
    source = narrow if transposed else narrow.transpose(1, 0)
    yield Choice(Matmul(source, transposed=transposed), precision, reads_panels=True)


def _blocks(kernel: Weight) -> Blocks | None:
    """Return what a matrix [C, O] is stored as, if that is blocks along the columns alone.

    One of 8 bits with a scale for each column may be taken so, but has kernels of its own.
    """
    blocks = kernel.blocks
    alone = blocks is not None and blocks.transposed and kernel.quantized is None
    return blocks if alone else None


def fuses_epilogue(kernel: Weight, rows: int | None, target: Target) -> bool:
    """Return whether the kernel of a matmul ends with any epilogue.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        rows: how many there are, where that is known.
        target: the processor.
    """
    if _blocks(kernel) is not None:
        return True
    if kernel.dtype == BFLOAT16 and target.has_bf16:
        return not bf16_passed_over(rows, target) or target.has_fp32_gemm
    return kernel.dtype == _FLOAT32 and kernel.quantized is None and target.has_fp32_gemm


def takes_quantized_rows(kernel: Weight, activations: str, target: Target) -> bool:
    """Return whether rows are quantized before a matmul, once for all that read them.

    Args:
        kernel: [C, O], of the dtype that it is stored in.
        activations: ``dynamic`` where rows are to be quantized.
        target: the processor.
    """
    matrix = kernel.quantized
    if activations != "dynamic" or matrix is None or _blocks(kernel) is not None:
        return False
    return quantizes_rows_before(matrix, kernel.shape[1], target)


def is_gemm(choice: Choice, target: Target) -> bool:
    """Return whether our float32 GEMM alone computes a choice, whatever the number of rows."""
    if choice.few_rows is not None or choice.problem.dtypes != "float32 x float32":
        return False
    return select(choice.problem, target).kernel is fp32.MATMUL
