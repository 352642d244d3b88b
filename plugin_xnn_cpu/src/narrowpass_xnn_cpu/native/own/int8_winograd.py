"""Convolutions of int8 by 3 x 3 with fewer multiplications (Winograd, in integers)."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, Run
from narrowpass_xnn_cpu.native.own.tiling import (
    COLUMNS,
    checked_elements,
    column_parts,
    even_bands,
    line,
)
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.winograd import MOST_INT8_CHANNELS

_ELEMENTS = 16
"""Of a transformed tile: NP_INT8_TILE."""
_BLOCK_BYTES = 100_000
"""Of transformed tiles; beside a panel of weights they stay in L2."""


def _pack(problem: Convolution) -> Packing:
    int8.checked_int8(problem)
    windows = problem.windows
    inputs, outputs = windows.channels, windows.outputs
    odd = inputs % COLUMNS or outputs % COLUMNS or inputs > MOST_INT8_CHANNELS
    if windows.size != (3, 3) or not problem.movement.is_plain or odd:
        raise BackendError(f"a kernel of {list(problem.shape)} has no fast algorithm")
    lib = extension().lib
    return int8.packing(
        problem,
        (),
        9 * inputs,
        lib.np_int8_winograd_packed_size(outputs, inputs),
        lambda block, k, b, s: lib.np_int8_pack_winograd(outputs, inputs, k, b, s, block),
    )


def _plan(problem: Convolution, packing: Packing, run: Run) -> Fields:
    """Divide tiles into blocks whose transformed elements stay in L2."""
    (batch, _, _, channels), out, outputs = run.image, run.out, problem.windows.outputs
    tiles = -(-out[0] // 2), -(-out[1] // 2)
    # As many tiles as fit are multiplied at a time, and a band of rows is a few such blocks.
    block = max(1, _BLOCK_BYTES // (2 * _ELEMENTS * channels))
    block = max(int8.ROWS, block // int8.ROWS * int8.ROWS)
    wide_width = 2 * tiles[1] + 2
    row_bytes = 2 * wide_width * channels
    most = max((int8.BAND_BYTES // row_bytes - 2) // 2, -(-block // tiles[1]))
    if run.threads > 1:
        most = min(most, -(-tiles[0] * batch // run.threads))
    band, bands = even_bands(tiles[0], most)
    count = band * tiles[1]
    block = min(block, -(-count // int8.ROWS) * int8.ROWS)
    columns, parts = column_parts(outputs, batch * bands, run.threads)
    wide = checked_elements((2 * band + 2) * wide_width * channels)
    tiles_offset = line(2 * wide)
    sums = tiles_offset + line(2 * checked_elements(_ELEMENTS * block * channels))
    pixels = sums + 4 * _ELEMENTS * block * COLUMNS
    return {
        **run.fields,
        "outputs": outputs,
        "pads": tuple(problem.movement.pads[:2]),
        "tiles": tiles,
        "row_tile": band,
        "row_tiles": bands,
        "block": block,
        "parts": parts,
        "part_columns": columns,
        "tiles_offset": tiles_offset,
        "acc_offset": sums,
        "pixels_offset": pixels,
        "thread_scratch": pixels + line(4 * block),
        **int8.requantization(problem),
    }


WINOGRAD = ConvolutionKernel(
    "winograd convolution int8",
    "NP_INT8_WINOGRAD",
    "int8 winograd",
    "NP_INT8_LAYOUT",
    "np_int8_winograd_params",
    _pack,
    _plan,
)
