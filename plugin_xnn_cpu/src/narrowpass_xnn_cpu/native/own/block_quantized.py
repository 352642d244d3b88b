"""Matmuls with a matrix of 2, 4 or 8 bits in blocks that share a scale.

The matrix is never dequantized as a whole. Up to 4 rows, where reading it takes longest, weights
become floats in registers; with more, a part of a panel of 32 columns is dequantized at a time,
beside the rows that it is multiplied with. Where rows are quantized, in blocks of the same size,
bytes are multiplied, and the accumulators of a block are scaled at its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.blocked import BITS
from narrowpass_planning.weights.weight import Array, Blocks, Weight, digest
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.gemv import divide_panels
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import even_row_tiles
from narrowpass_xnn_cpu.native.problems.bounds import checked_range, checked_shape
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock
from narrowpass_xnn_cpu.native.weights_cache import Session

_ROW_TILE = 240
"""Rows that are multiplied with a part of a panel: their accumulators, 30 KB, stay near."""

_SIGNED = {"int2": 2, "int4": 8, "int8": 128}
"""What is added to integers with a sign, by their type, so that they have none."""


def _checked(problem: Matmul) -> Blocks:
    """Check the shapes of a block-quantized matrix [O, C], its scales and the bias; return it."""
    matrix, bias = problem.matrix, problem.bias
    if not isinstance(matrix, Blocks):
        raise BackendError(f"a matmul of {problem.dtypes} has no block-quantized matrix")
    outputs, width = checked_shape(matrix.integers.shape, 2)
    inputs, block, bits = matrix.columns, matrix.size, matrix.bits
    blocks = -(-inputs // block)
    fits = bits in (2, 4, 8) and block >= 8 and block % (32 // bits) == 0
    if not fits or not inputs <= width <= blocks * block:
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
    lib, offset = extension().lib, _SIGNED.get(matrix.integers.dtype.name, 0)
    halves = matrix.scale.dtype == np.float16
    zero = matrix.zero
    kind = "COMMON" if zero is None else "U8" if zero.dtype.name in BITS else "F32"
    form = {
        "outputs": outputs,
        "inputs": inputs,
        "block": matrix.size,
        "bits": matrix.bits,
        "scales": lib.NP_NBITS_SCALES_F16 if halves else lib.NP_NBITS_SCALES_F32,
        "zeros": getattr(lib, f"NP_NBITS_ZEROS_{kind}"),
        "zero": float(matrix.common + offset),
    }
    described = extension().ffi.new("struct np_nbits_matrix *", form)
    # The common zero point is no part of what is packed, but its kind is.
    return Packing(
        tuple(value for name, value in form.items() if name != "zero"),
        _unsigned(matrix.integers, offset, -(-inputs // matrix.size) * matrix.size),
        problem.bias,
        _numbers(matrix, offset, kind),
        lib.np_nbits_packed_size(described),
        lambda to, k, b, s: lib.np_nbits_pack(described, k, s, b, to),
        form,
    )


def _plan(problem: Matmul, packing: Packing, run: RunSizes) -> Fields:
    lib, rows, threads = extension().lib, run.image[1], run.threads
    matrix = extension().ffi.new("struct np_nbits_matrix *", packing.form)
    quantized = isinstance(problem.operand, PerBlock)
    panels = -(-packing.form["outputs"] // lib.NP_NBITS_COLUMNS)
    each, parts = divide_panels(panels, threads)
    tile, _ = even_row_tiles(rows, _ROW_TILE)
    shared = lib.np_nbits_rows_size(matrix, rows) if quantized else 0
    own = lib.np_nbits_scratch_size(matrix, tile)
    return {
        "matrix": packing.form,
        "rows": rows,
        "row_tile": tile,
        "parts": parts,
        "part_panels": each,
        "quantized": quantized,
        "shared_scratch": shared,
        "own_scratch": own,
        "thread_scratch": own + -(-shared // (64 * threads)) * 64,
    }


def _unsigned(integers: Weight, offset: int, width: int) -> Weight:
    """Return integers as bytes from 0 on, with zeros behind each row up to `width`."""
    rows, columns = integers.shape

    def load(array: Array) -> Array:
        if offset == 128:
            found = array.view(np.uint8) ^ np.uint8(128)
        elif offset:
            found = (array.astype(np.int8) + np.int8(offset)).view(np.uint8)
        else:
            found = array.astype(np.uint8)
        return np.pad(found, ((0, 0), (0, width - columns))) if width > columns else found

    recipe = f"as bytes plus {offset} of {width}"
    return integers.then(recipe, load, (rows, width), np.dtype(np.uint8))


def _numbers(matrix: Blocks, offset: int, kind: str) -> Weight:
    """Return the bytes of scales and zero points, one after the other."""
    scale, zero = matrix.scale, matrix.zero
    wanted = np.dtype(np.float16 if scale.dtype == np.float16 else np.float32)

    def load() -> Array:
        parts = [scale.array().astype(wanted)]
        if zero is not None:
            points = zero.array().astype(np.float32) + np.float32(offset)
            parts.append(points if kind == "F32" else points.astype(np.uint8))
        return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])

    parts = [scale.identity] if zero is None else [scale.identity, zero.identity]
    recipe = f"scales and zero points {wanted} {offset} {kind}"
    identity = digest(recipe, *parts) if all(parts) else ""
    size = wanted.itemsize + {"COMMON": 0, "U8": 1, "F32": 4}[kind]
    return Weight((scale.size * size,), np.dtype(np.uint8), identity, load, scale.drop)


MATMUL = MatmulKernel(
    "fully connected",
    "NP_NBITS",
    "nbits",
    "NP_NBITS_LAYOUT",
    _pack,
    _plan,
    fuses_epilogue=True,
)


class BlockEmbedding:
    """An embedding that is packed as the matrix of a matmul is, so that a tied one is packed once.

    Args:
        matrix: [rows, columns].
        session: of the weights cache, if there is one.

    Attributes:
        rows: of the embedding.
        columns: of a row.
    """

    call = "NP_NBITS_GATHER"

    def __init__(self, matrix: Blocks, session: Session | None) -> None:
        self._matmul = MATMUL.create(Matmul(matrix), session)
        self._form = _pack(Matmul(matrix)).form
        self.columns, self.rows = self._matmul.channels, self._matmul.outputs

    def params(self, indices: int, index_size: int) -> Any:
        """Return the parameters for so many indices of so many bytes each."""
        fields = {
            "packed": self._matmul.packed,
            "matrix": self._form,
            "indices": indices,
            "index_size": index_size,
        }
        return extension().ffi.new("struct np_nbits_gather_params *", fields)
