"""Convolutions of float32 by 3 x 3 with fewer multiplications (Winograd, Cook-Toom)."""

from __future__ import annotations

import dataclasses

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operator import Fields
from narrowpass_xnn_cpu.native.own.fp32 import panels
from narrowpass_xnn_cpu.native.own.packed import ConvolutionKernel, Packing, Run
from narrowpass_xnn_cpu.native.own.tiling import checked_elements, offsets
from narrowpass_xnn_cpu.native.problems.bounds import checked_weights
from narrowpass_xnn_cpu.native.problems.convolution import Convolution
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError
from narrowpass_xnn_cpu.native.problems.winograd import fits_winograd

LARGEST_WEIGHT = 2.0**48
"""Above this, multiplied tiles of inputs that are no larger might overflow before they are
transformed back."""

_BLOCK_BYTES = {8: 3 << 17, 16: 1 << 20}
"""Of transformed tiles and their accumulators of a panel, by lanes: about L2."""
_ROWS = 24
"""Tiles that are multiplied with each weight that is read, at least, where there are as many."""
_LINE = 16
"""Floats of a cache line, and of the longest register."""


def _kernel(tile: int) -> ConvolutionKernel:
    """Return the kernel for tiles of `tile` x `tile` outputs."""

    def pack(problem: Convolution) -> Packing:
        windows, kernel = problem.windows, problem.kernel
        if not fits_winograd(problem.shape, problem.movement):
            raise BackendError(f"a kernel of {list(problem.shape)} has no tiles of {tile} x {tile}")
        if not isinstance(kernel, Weight):
            raise BackendError(f"a kernel must be float32, not {problem.dtypes}")
        checked_weights(kernel, problem.bias, windows.outputs, "float32", "float32")
        lib, lanes = extension().lib, target.current().fp32_packing
        sizes = lanes, tile, windows.outputs, windows.channels
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
        "np_fp32_winograd_params",
        pack,
        lambda problem, packing, run: _plan(problem, packing, run, tile),
        fuses_epilogue=True,
    )


def _plan(problem: Convolution, packing: Packing, run: Run, tile: int) -> Fields:
    """Divide tiles into blocks whose transformed elements stay in L2."""
    windows, lanes, threads = problem.windows, packing.form, run.threads
    out = run.out
    tiles = -(-out[0] // tile), -(-out[1] // tile)
    count = run.image[0] * tiles[0] * tiles[1]
    elements = (tile + 2) ** 2
    row = -(-windows.channels // _LINE) * _LINE
    vectors, panel_count = -(-windows.outputs // lanes), panels(lanes, windows.outputs)
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
    # An odd number of lines from one element to the next: they do not fall onto each other in L1.
    stride, sums = _odd_lines(block * row), _odd_lines(block * columns)
    checked_elements(stride)
    sums_offset = 4 * elements * stride
    return {
        **run.fields,
        **offsets(sums_offset + 4 * elements * sums, zeros=4 * row, rows=4 * block),
        "lanes": lanes,
        "tile": tile,
        "outputs": windows.outputs,
        "pads": tuple(problem.movement.pads[:2]),
        "tiles": tiles,
        "blocks": blocks,
        "parts": parts,
        "row_stride": row,
        "element_stride": stride,
        "acc_stride": sums,
        "acc_offset": sums_offset,
    }


def _odd_lines(floats: int) -> int:
    """Round up to whole cache lines, an odd number of them."""
    return (-(-floats // _LINE) | 1) * _LINE


def _checked(kernel: Weight) -> Weight:
    """Return weights that are checked when they are loaded; of the same name."""

    def make() -> Array:
        array = np.ascontiguousarray(kernel.make())
        if not np.abs(array).max(initial=0) <= LARGEST_WEIGHT:  # NaN is not either
            raise UnfitError(f"a weight is not finite, or above {LARGEST_WEIGHT}")
        return array

    return dataclasses.replace(kernel, make=make)


TILE_2, TILE_4 = _kernel(2), _kernel(4)
BY_TILE = {2: TILE_2, 4: TILE_4}
