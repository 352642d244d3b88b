"""Winograd convolution F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3) of float32 (Lavin and Gray, 2015)."""

from __future__ import annotations

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.fp32 import panels
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, RunSizes
from narrowpass_xnn_cpu.native.own.tiling import checked_elements, scratch_offsets
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution, fits_winograd
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError

LARGEST_WEIGHT = 2.0**48
"""Largest weight: with larger ones, accumulators of inputs of the same size might overflow before
the inverse transform."""

_BLOCK_BYTES = {8: 3 << 17, 16: 1 << 20}
"""Bytes of a block: transformed inputs and a panel of accumulators; by SIMD lanes, about L2."""
_ROWS = 24
"""Tiles of a block, at least, for which each transformed weight is read."""
_LINE = 16
"""Floats of a cache line, and of the widest SIMD register."""


def _kernel(tile: int) -> ConvolutionKernel:
    """Return the kernel F(`tile` x `tile`, 3 x 3)."""

    def pack(problem: Convolution) -> Packing:
        geometry, kernel = problem.geometry, problem.kernel
        if not fits_winograd(problem.shape, problem.attributes):
            raise BackendError(f"a kernel of {list(problem.shape)} has no tiles of {tile} x {tile}")
        if not isinstance(kernel, Weight):
            raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
        checked_weights(kernel, problem.bias, geometry.outputs, "float32", "float32")
        lib, lanes = extension().lib, target.current().fp32_packing
        sizes = lanes, tile, geometry.outputs, geometry.channels
        return Packing(
            sizes,
            _checked(kernel),
            problem.bias,
            None,
            lib.np_fp32_winograd_packed_size(*sizes),
            lambda block, k, b, _: lib.np_fp32_winograd_pack(*sizes, k, b, block),
            lanes,
        )

    return ConvolutionKernel(
        f"winograd {tile}x{tile} convolution",
        "NP_FP32_WINOGRAD",
        "fp32 winograd",
        "NP_FP32_WINOGRAD_LAYOUT",
        pack,
        lambda problem, packing, run: _plan(problem, packing, run, tile),
        fuses_epilogue=True,
    )


def _plan(problem: Convolution, packing: Packing, run: RunSizes, tile: int) -> Fields:
    """Divide tiles into blocks whose transformed elements stay in L2, and blocks among threads."""
    geometry, lanes, threads = problem.geometry, packing.form, run.threads
    out = run.out
    tiles = -(-out[0] // tile), -(-out[1] // tile)
    count = run.image[0] * tiles[0] * tiles[1]
    elements = (tile + 2) ** 2
    row = -(-geometry.channels // _LINE) * _LINE
    vectors, panel_count = -(-geometry.outputs // lanes), panels(lanes, geometry.outputs)
    columns = -(-vectors // panel_count) * lanes  # of the widest panel
    room = _BLOCK_BYTES[lanes] // (4 * elements * (row + columns))
    blocks = -(-count // max(_ROWS, room))
    parts = 1
    if blocks < threads:
        # Panels are divided first: each weight is then still read by one thread alone.
        parts = min(panel_count, -(-threads // blocks))
        blocks = max(blocks, min(-(-count // (_ROWS // 2)), -(-threads // parts)))
    elif blocks < 4 * threads:
        blocks = min(count, -(-blocks // threads) * threads)
    block = -(-count // blocks)
    # An odd stride in cache lines: elements of a tile fall into different sets of L1.
    stride, accumulators = _odd_lines(block * row), _odd_lines(block * columns)
    checked_elements(stride)
    accumulators_offset = 4 * elements * stride
    return {
        **run.fields,
        **scratch_offsets(
            accumulators_offset + 4 * elements * accumulators, zeros=4 * row, rows=4 * block
        ),
        "lanes": lanes,
        "tile": tile,
        "outputs": geometry.outputs,
        "pads": tuple(problem.attributes.pads[:2]),
        "tiles": tiles,
        "blocks": blocks,
        "parts": parts,
        "row_stride": row,
        "element_stride": stride,
        "acc_stride": accumulators,
        "acc_offset": accumulators_offset,
    }


def _odd_lines(floats: int) -> int:
    """Round up to an odd number of cache lines."""
    return (-(-floats // _LINE) | 1) * _LINE


def _checked(kernel: Weight) -> Weight:
    """Return weights that raise `UnfitError` when they are loaded, if one of them is too large."""

    def check(array: Array) -> None:
        if not np.abs(array).max(initial=0) <= LARGEST_WEIGHT:  # false for NaN too
            raise UnfitError(f"a weight is not finite, or above {LARGEST_WEIGHT}")

    return kernel.checked(check)


TILE_2, TILE_4 = _kernel(2), _kernel(4)
BY_TILE = {2: TILE_2, 4: TILE_4}
