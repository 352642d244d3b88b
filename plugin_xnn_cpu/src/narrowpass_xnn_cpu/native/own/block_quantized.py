"""Matmuls with a matrix of 2, 4 or 8 bits, or of float8, in blocks that share a scale.

The matrix is never dequantized as a whole. Up to 4 rows, where reading it takes longest, weights
become floats in registers; with more, a part of a panel of 32 columns is dequantized at a time,
beside the rows that it is multiplied with. Where rows are quantized, in blocks of the same size,
bytes are multiplied, and the accumulators of a block are scaled at its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.blocked import BITS, FLOAT8
from narrowpass_planning.weights.weight import Array, Blocks, Weight, digest
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields, Operator
from narrowpass_xnn_cpu.native.own.gemv import divide_panels
from narrowpass_xnn_cpu.native.own.packed import MatmulKernel, PackedMatmul, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import even_row_tiles
from narrowpass_xnn_cpu.native.problems.bounds import checked_range, checked_shape
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerBlock
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.weights_cache import Session

_ROW_TILE = 240
"""Rows that are multiplied with a part of a panel: their accumulators, 30 KB, stay near."""

_SIGNED = {"int2": 2, "int4": 8, "int8": 128}
"""What is added to integers with a sign, by their type, so that they have none."""

_FORMATS = dict(zip(FLOAT8, ("E4M3FN", "E5M2"), strict=True))
"""Names of ``NP_NBITS_*``, by the type of float8."""

_MAGNITUDE = np.uint8(0x7F)
"""Bits of a float8 without its sign; in E4M3FN the magnitude with all of them is NaN."""


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
    inputs = matrix.columns
    matrix = _padded(matrix)
    outputs = matrix.integers.shape[0]
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
        "format": getattr(lib, f"NP_NBITS_{_FORMATS.get(matrix.integers.dtype.name, 'INTEGERS')}"),
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
    shared = lib.np_nbits_rows_size(matrix, rows, 1) if quantized else 0
    own = lib.np_nbits_scratch_size(matrix, tile)
    return {
        "matrix": packing.form,
        "rows": rows,
        "row_tile": tile,
        "parts": parts,
        "part_panels": each,
        "quantized": quantized,
        "rounds": isinstance(problem.operand, PerBlock) and problem.operand.rounds,
        "shared_scratch": shared,
        "own_scratch": own,
        "thread_scratch": own + -(-shared // (64 * threads)) * 64,
    }


def _padded(matrix: Blocks) -> Blocks:
    """Return stacked matrices each padded with zeros to whole panels; one matrix as it is."""
    count, rows = matrix.matrices, matrix.integers.shape[0]
    each = rows // count
    width = -(-each // extension().lib.NP_NBITS_COLUMNS) * extension().lib.NP_NBITS_COLUMNS
    if count == 1 or width == each:
        return matrix

    def padded(weight: Weight) -> Weight:
        columns = weight.shape[1]

        def load(array: Array) -> Array:
            whole = np.zeros((count, width, columns), array.dtype)
            whole[:, :each] = array.reshape(count, each, columns)
            return whole.reshape(count * width, columns)

        recipe = f"{count} matrices of {width} rows"
        return weight.then(recipe, load, (count * width, columns))

    zero = None if matrix.zero is None else padded(matrix.zero)
    integers, scale = padded(matrix.integers), padded(matrix.scale)
    return dataclasses.replace(matrix, integers=integers, scale=scale, zero=zero)


def _unsigned(integers: Weight, offset: int, width: int) -> Weight:
    """Return bytes: integers from 0 on, or float8, with zeros behind each row up to `width`."""
    rows, columns = integers.shape
    dtype = integers.dtype.name

    def load(array: Array) -> Array:
        if dtype in FLOAT8:
            found = array.view(np.uint8)
            if dtype == "float8_e4m3fn" and (found & _MAGNITUDE == _MAGNITUDE).any():
                raise UnfitError("a weight is NaN")
        elif offset == 128:
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
        if not np.isfinite(parts[0]).all():
            # Accumulators times an infinite scale are infinite where a matrix with infinite
            # elements results in NaN.
            raise UnfitError("a scale is not finite")
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


class _SeveralMatmuls(Operator):
    """Matmuls by one call, whose results follow one another or are multiplied."""

    call = "NP_NBITS_JOINED"

    def _join(
        self, segments: Any, shared: int, panels: int, pool: ThreadPool, **fields: int | bool
    ) -> Any:
        """Return the parameters.

        Args:
            segments: ``struct np_nbits_params`` of each matmul.
            shared: bytes of scratch memory that threads share.
            panels: that threads divide.
            pool: the threads.
            fields: others.
        """
        own = max(segment.own_scratch for segment in segments)
        thread_scratch = own + -(-shared // (64 * pool.threads)) * 64
        given = {
            "segment": segments,
            "segments": len(segments),
            "part_panels": divide_panels(panels, pool.threads)[0],
            "shared_scratch": shared,
            "own_scratch": own,
            "thread_scratch": thread_scratch,
            **fields,
        }
        params = self._ffi.new("struct np_nbits_joined_params *", given)
        self.params = calls.owning(params, segments)
        self.workspace = pool.threads * thread_scratch
        return self.params

    def _panels(self, outputs: int) -> int:
        return -(-outputs // int(self._lib.NP_NBITS_COLUMNS))


class JoinedMatmul(_SeveralMatmuls):
    """Matmuls of the same rows by one call: results follow one another, or are multiplied.

    Rows are quantized once, and threads meet once and not for each matrix. Each matrix is packed as
    for a matmul of its own, under its own name in the weights cache.

    Args:
        matmuls: of block-quantized matrices with the same inputs and blocks, without residuals.
        gated: whether the results of two, after their epilogues, are multiplied.

    Attributes:
        channels: of the rows.
        outputs: columns of the result of each matmul.

    Raises:
        BackendError: matmuls that cannot be joined.
    """

    def __init__(self, matmuls: Sequence[PackedMatmul], *, gated: bool) -> None:
        super().__init__()
        forms = {(m.call, m.channels, m.form["block"], type(m.problem.operand)) for m in matmuls}
        self.outputs = tuple(matmul.outputs for matmul in matmuls)
        if len(forms) != 1 or matmuls[0].call != MATMUL.call:
            raise BackendError("these matmuls do not read rows in the same form")
        if gated and (len(matmuls) != 2 or len(set(self.outputs)) != 1):
            raise BackendError(f"results of {list(self.outputs)} columns are not multiplied")
        self._matmuls, self._gated = tuple(matmuls), gated
        self.channels = matmuls[0].channels

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Reshape for `rows` rows; return the parameters."""
        parts = [matmul.reshape(rows, pool)[0] for matmul in self._matmuls]
        panels = [self._panels(outputs) for outputs in self.outputs]
        result = -(-rows * self.outputs[0] * 4 // 64) * 64 if self._gated else 0
        return self._join(
            self._ffi.new("struct np_nbits_params[]", parts),
            parts[0].shared_scratch + result,
            panels[0] if self._gated else sum(panels),
            pool,
            row_sets=1,
            gated=self._gated,
        )


class StackedMatmul(_SeveralMatmuls):
    """Rows times each of several constant matrices, as those of experts, packed as one.

    Args:
        problem: of a block-quantized matrix with `Blocks.matrices`; without a bias.
        session: of the weights cache, if there is one.

    Attributes:
        channels: of the rows.
        matrices: their number.
        outputs: columns of the result of each.
    """

    def __init__(self, problem: Matmul, session: Session | None) -> None:
        super().__init__()
        blocks = _checked(problem)
        self._matmul = MATMUL.create(problem, session)
        self.channels, self.matrices = self._matmul.channels, blocks.matrices
        self.outputs = blocks.integers.shape[0] // blocks.matrices

    def reshape(self, rows: int, pool: ThreadPool, *, shared_rows: bool) -> Any:
        """Reshape for `rows` rows for each matrix, or the same for all; return the parameters."""
        part, count = self._matmul.reshape(rows, pool)[0], self.matrices
        sets = 1 if shared_rows else count
        shared = part.shared_scratch
        if part.quantized:
            matrix = self._ffi.addressof(part, "matrix")
            shared = int(self._lib.np_nbits_rows_size(matrix, rows, sets))
        size = int(self._lib.np_nbits_packed_size(self._ffi.addressof(part, "matrix"))) // count
        segments = self._ffi.new("struct np_nbits_params[]", [part] * count)
        start = self._ffi.cast("const char *", part.packed)
        for index in range(count):
            segments[index].packed = start + index * size
            segments[index].matrix.outputs = self.outputs
        panels = count * self._panels(self.outputs)
        return self._join(segments, shared, panels, pool, row_sets=sets, gated=False)


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
