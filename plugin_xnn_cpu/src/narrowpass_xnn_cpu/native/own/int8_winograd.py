"""Winograd convolution F(2 x 2, 3 x 3) of int8, in exact integers."""

from __future__ import annotations

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own import int8
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import (
    NR,
    align_to_line,
    checked_elements,
    column_parts,
    even_row_tiles,
)
from narrowpass_xnn_cpu.native.problems.convolution import MAX_INT8_CHANNELS, Convolution

_ELEMENTS = 16
"""Elements of a transformed 4 x 4 tile: NP_INT8_TILE."""
_BLOCK_BYTES = 100_000
"""Bytes of a block of transformed tiles: beside a panel of weights they stay in L2."""


def _pack(problem: Convolution) -> Packing:
    int8.checked_int8(problem)
    geometry = problem.geometry
    inputs, outputs = geometry.channels, geometry.outputs
    odd = inputs % NR or outputs % NR or inputs > MAX_INT8_CHANNELS
    if geometry.kernel_size != (3, 3) or not problem.attributes.is_plain or odd:
        raise BackendError(
            f"F(2 x 2, 3 x 3) of int8 does not compute a kernel of {list(problem.shape)}"
        )
    lib = extension().lib
    return int8.packing(
        problem,
        (),
        9 * inputs,
        lib.np_int8_winograd_packed_size(outputs, inputs),
        lambda block, k, b, s: lib.np_int8_pack_winograd(outputs, inputs, k, b, s, block),
    )


def _plan(problem: Convolution, packing: Packing, run: RunSizes) -> Fields:
    """Divide tiles into blocks whose transformed elements stay in L2."""
    (batch, _, _, channels), out, outputs = run.image, run.out, problem.geometry.outputs
    tiles = -(-out[0] // 2), -(-out[1] // 2)
    # A block is as many tiles as fit into L2, and a row tile is a few such blocks.
    block = max(1, _BLOCK_BYTES // (2 * _ELEMENTS * channels))
    block = max(int8.MR, block // int8.MR * int8.MR)
    wide_width = 2 * tiles[1] + 2
    row_bytes = 2 * wide_width * channels
    most = max((int8.ROW_TILE_BYTES // row_bytes - 2) // 2, -(-block // tiles[1]))
    if run.threads > 1:
        most = min(most, -(-tiles[0] * batch // run.threads))
    row_tile, row_tiles = even_row_tiles(tiles[0], most)
    count = row_tile * tiles[1]
    block = min(block, -(-count // int8.MR) * int8.MR)
    columns, parts = column_parts(outputs, batch * row_tiles, run.threads)
    wide = checked_elements((2 * row_tile + 2) * wide_width * channels)
    tiles_offset = align_to_line(2 * wide)
    accumulators = tiles_offset + align_to_line(2 * checked_elements(_ELEMENTS * block * channels))
    pixels = accumulators + 4 * _ELEMENTS * block * NR
    return {
        **run.fields,
        "outputs": outputs,
        "pads": tuple(problem.attributes.pads[:2]),
        "tiles": tiles,
        "row_tile": row_tile,
        "row_tiles": row_tiles,
        "block": block,
        "parts": parts,
        "part_columns": columns,
        "tiles_offset": tiles_offset,
        "acc_offset": accumulators,
        "pixels_offset": pixels,
        "thread_scratch": pixels + align_to_line(4 * block),
        **int8.requantization(problem),
    }


WINOGRAD = ConvolutionKernel(
    "winograd convolution int8",
    "NP_INT8_WINOGRAD",
    "int8 winograd",
    "NP_INT8_LAYOUT",
    _pack,
    _plan,
)
