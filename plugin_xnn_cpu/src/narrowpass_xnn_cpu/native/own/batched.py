"""Batched strided GEMM of two activations; B is packed at run time, or read unpacked.

Packed or not is decided by the sizes: see `_form`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own.tiling import align_to_line
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue

BATCH = 4
"""NP_MATMUL_BATCH: batch dimensions."""
_PANEL = {4: 8, 8: 16, 16: 64}
"""NR of the widest micro-kernel, by SIMD lanes."""
_DEPTH = {4: 256, 8: 256, 16: 384}
"""KC, by SIMD lanes: a packed panel of this depth stays in L1, or with AVX-512 in L2."""
_PACKED_BYTES = {4: 3 << 16, 8: 3 << 16, 16: 1 << 19}
"""Bytes of the packed panels of a part, at most: they stay in L2 beside rows of A."""
_ROWS_BYTES = 1 << 16
"""Bytes of the rows of A that are read for all panels of a part: they stay in L2 too."""
_OUT_BYTES = 1 << 15
"""Bytes of a row block of the output: panels of a few columns would touch many pages otherwise."""
_FEW_ROWS = 24
"""Rows up to which packing B costs more than reading it unpacked."""
_DOT_DEPTH = 16
"""K / rows from which dot products cost less than packing a transposed B."""
_DOT_ROWS = 12
_TILE = 6
"""MR of the widest micro-kernel."""
_LEAST_ROWS = 12
"""Rows of a part, at least, where it has several."""
_PART_WORK = 1 << 29
"""Multiply-accumulates of a part, at most: a run can be interrupted between two parts."""
_LEAST_WORK = 1 << 14
"""Multiply-accumulates of a part, at least, where it has several matrices."""
_PARTS = 4
"""Parts for each thread: others take over those of a slow one."""


@dataclass(frozen=True)
class Operand:
    """The strides of a batch of matrices, in elements.

    Attributes:
        batch: four strides, 0 along dimensions that are broadcast.
        row: from a row to the next.
        column: from a column to the next.
    """

    batch: tuple[int, ...]
    row: int
    column: int

    def transposed(self) -> Operand:
        """Return the transposed matrices."""
        return Operand(self.batch, self.column, self.row)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a batch of matmuls.

    Attributes:
        batch: four dimensions, those of the output.
        rows: of A and of the output.
        depth: the columns of A, and the rows of B.
        columns: of B and of the output.
    """

    batch: tuple[int, ...]
    rows: int
    depth: int
    columns: int

    @property
    def work(self) -> int:
        """Multiply-accumulates of one matrix."""
        return self.rows * self.columns * max(1, self.depth)


def matmul(
    sizes: Sizes,
    a: Operand,
    b: Operand,
    out: Operand,
    *,
    alpha: float = 1.0,
    bias: bool = False,
    epilogue: Epilogue | None = None,
    threads: int = 1,
    deterministic: bool = False,
) -> tuple[Any, int]:
    """Return the parameters of ``NP_MATMUL``, and the bytes of workspace that it needs.

    Args:
        sizes: all at least 1, but the depth, which may be 0.
        a: [rows, depth].
        b: [depth, columns].
        out: [rows, columns]; its column stride is 1.
        alpha: what A·B is multiplied by.
        bias: whether there is a third input, of `columns` elements.
        epilogue: the fused epilogue; None for none.
        threads: that may compute at once.
        deterministic: whether the bits of a row may not depend on the number of rows.

    Raises:
        BackendError: sizes that cannot be computed with.
    """
    if out.column != 1 and sizes.columns > 1:
        raise BackendError("the columns of a matmul's output are not dense")
    sizes, a, b, out = _folded(sizes, a, b, out)
    swapped = sizes.columns == 1 and sizes.rows > 1 and out.row == 1 and not bias
    if swapped:
        # A·b as (bᵀ·Aᵀ)ᵀ: the vector is the only row, and stays in registers and L1.
        sizes = Sizes(sizes.batch, 1, sizes.depth, sizes.rows)
        a, b, out = b.transposed(), a.transposed(), Operand(out.batch, 0, 1)
    matrices = math.prod(sizes.batch)
    if matrices * max(1, sizes.rows) * max(sizes.columns, sizes.depth) >= 1 << 46:
        raise BackendError(f"a matmul of {sizes} is too large")
    ffi, lib, target = extension().ffi, extension().lib, kernels.code()
    lanes = int(lib.np_matmul_lanes(target))
    form = _form(sizes, a, b, deterministic=deterministic, vector=swapped)
    depth = sizes.depth if form == "DOTS" else _block_size(sizes.depth, _DEPTH[lanes], 8)
    most = sizes.columns
    if form == "PACKED":
        most = max(1, _PACKED_BYTES[lanes] // (4 * max(1, depth) * _PANEL[lanes])) * _PANEL[lanes]
    parts = _parts(sizes, matrices, min(most, sizes.columns), _PANEL[lanes], threads)
    part_matrices, part_rows, part_columns = parts
    rows = _row_block(part_rows, depth, part_columns)
    # The micro-kernels for constant matrices need dense rows of A, at any offsets.
    panels = form == "PACKED" and lanes > 4 and (a.column == 1 or sizes.depth <= 1)
    panels = panels and rows * a.row < 1 << 31
    packed = align_to_line(4 * depth * -(-part_columns // lanes) * lanes) // 4
    pixels_offset = packed if form == "PACKED" else 0
    scratch = pixels_offset + (align_to_line(4 * rows) // 4 if panels else 0)
    given = {
        "batch": sizes.batch,
        "a_batch": a.batch,
        "b_batch": b.batch,
        "out_batch": out.batch,
        "rows": sizes.rows,
        "depth": sizes.depth,
        "columns": sizes.columns,
        "a_strides": (a.row, a.column),
        "b_strides": (b.row, b.column),
        "out_stride": out.row,
        "form": getattr(lib, f"NP_MATMUL_{form}"),
        "swapped": swapped,
        "has_bias": bias,
        "alpha": alpha,
        "target": target,
        "depth_block": max(1, depth),
        "row_block": rows,
        "part_matrices": part_matrices,
        "part_rows": part_rows,
        "part_columns": part_columns,
        "panels": panels,
        "pixels_offset": pixels_offset,
        "thread_scratch": scratch,
        "epilogue": (epilogue or Epilogue()).params(),
    }
    return ffi.new("struct np_matmul_params *", given), 4 * threads * scratch


def _folded(
    sizes: Sizes, a: Operand, b: Operand, out: Operand
) -> tuple[Sizes, Operand, Operand, Operand]:
    """Fold batch dimensions that share B into the rows of A and of the output."""
    batch, rows = list(sizes.batch), sizes.rows
    row, out_row = a.row, out.row
    for i in range(BATCH - 1, -1, -1):
        if batch[i] == 1:
            continue
        if rows == 1:
            row, out_row = a.batch[i], out.batch[i]
        elif a.batch[i] != rows * row or out.batch[i] != rows * out_row:
            break
        if b.batch[i]:
            break
        rows *= batch[i]
        batch[i] = 1
    if rows != sizes.rows:
        sizes = Sizes(tuple(batch), rows, sizes.depth, sizes.columns)
        a, out = Operand(a.batch, row, a.column), Operand(out.batch, out_row, out.column)
    return sizes, a, b, out


def _form(sizes: Sizes, a: Operand, b: Operand, *, deterministic: bool, vector: bool) -> str:
    """Choose how B is read: unpacked by rows or dot products for few rows of A, else packed.

    Dot products accumulate in another order than the others. `deterministic` ones depend on the
    depth alone, and are those of vectors: of B, or of A where the operands are swapped (`vector`).
    """
    dense_depth = b.row == 1 or sizes.depth <= 1
    if (b.column == 1 or sizes.columns == 1) and (sizes.columns > 1 or not dense_depth):
        return "ROWS" if sizes.rows <= _FEW_ROWS else "PACKED"
    if not dense_depth or (a.column != 1 and sizes.depth > 1):
        return "PACKED"
    few = sizes.rows <= _DOT_ROWS and sizes.rows * _DOT_DEPTH <= sizes.depth
    few = vector if deterministic else few
    return "DOTS" if few or sizes.columns == 1 else "PACKED"


def _parts(
    sizes: Sizes, matrices: int, most: int, panel: int, threads: int
) -> tuple[int, int, int]:
    """Divide a batch among threads; return the matrices, rows and columns of a part.

    Columns are divided before rows, since each part of rows packs all panels again.
    """
    wanted = _PARTS * threads if threads > 1 else 1
    least = -(-sizes.columns // most)
    stops = -(-sizes.work // _PART_WORK)
    if matrices >= wanted and least == stops == 1:
        together = max(1, min(matrices // wanted, -(-_LEAST_WORK // sizes.work)))
        if threads == 1:
            together = max(1, min(matrices, _PART_WORK // 8 // sizes.work))
        return together, sizes.rows, sizes.columns
    pieces = max(stops, -(-wanted // matrices))
    panels = -(-sizes.columns // panel)
    columns = -(-panels // max(least, min(panels, pieces))) * panel
    pieces = -(-pieces // -(-sizes.columns // columns))
    rows = max(_LEAST_ROWS, -(-sizes.rows // pieces))
    return 1, min(sizes.rows, rows), min(sizes.columns, columns)


def _row_block(rows: int, depth: int, columns: int) -> int:
    """Return the rows of a row block, which is multiplied with all panels of a part."""
    most = min(_ROWS_BYTES // (4 * max(1, depth)), _OUT_BYTES // (4 * columns))
    return max(1, _block_size(rows, max(_TILE, most // _TILE * _TILE), _TILE))


def _block_size(size: int, most: int, multiple: int) -> int:
    """Divide a size into equal blocks of about `most`, multiples of `multiple`."""
    count = max(1, -(-size // most))
    each = -(-size // count)
    return size if count == 1 else -(-each // multiple) * multiple
