"""GEMM of float32 rows with int8 weights, for many rows: panels are upcast once, in L2.

XNNPACK's kernels upcast each weight again for every seven rows. The kernel here upcasts it once for
a row tile, into L2, and runs the micro-kernels of float32: a prefill takes as long as with float32
weights.
"""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own.panels import PanelMatmul, Panels
from narrowpass_xnn_cpu.native.own.tiling import (
    align_to_line,
    checked_elements,
    even_row_tiles,
    scratch_offsets,
)
from narrowpass_xnn_cpu.native.problems.bounds import Range, checked_range, float32
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool

MIN_ROWS = 16
"""With fewer rows, upcasting costs more than it saves: two tiles of XNNPACK have 14 rows."""
_COLUMNS = 64
"""Columns that are upcast together: NR of the widest float32 micro-kernel."""
_DEPTH = 768
"""KC: the block of K, for which 64 upcast columns stay in L2."""
_ROW_TILE_BYTES = 1 << 19
"""Bytes of a row tile's inputs for a block of K, which stay in L2 too."""
_MOST_LANES = 16
"""Columns that are upcast at a time, those of a vector of AVX-512; code for any processor takes
narrower panels, too."""
_PARTS = 4
"""Parts for each thread: others take over those of a slow one."""


def upcasts(rows: int) -> bool:
    """Return whether this kernel multiplies so many rows on this processor.

    On AVX-512 it is faster than XNNPACK's with many. Where FMA is emulated, which XNNPACK's is not,
    it multiplies any number.
    """
    processor = target.current()
    return (processor.fp32_packing == 16 and rows >= MIN_ROWS) or processor.emulates_fma


class UpcastMatmul(PanelMatmul):
    """Rows of float32 times an int8 matrix that another operator has packed in panels.

    Weights are upcast before they are multiplied; accumulators are float32, and scaled at the end.

    Args:
        panels: the matrix.
        limits: the clipping range of the output.
    """

    call = "NP_GEMM_INT8_WEIGHTS"

    def __init__(self, panels: Panels, limits: Range) -> None:
        super().__init__(panels)
        self._limits = checked_range(limits)

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Reshape for `rows` rows; return the parameters."""
        common, width, channels = self._common(rows), self._panels.layout.width, self.channels
        low, high = map(float32, self._limits)
        depth = -(-channels // -(-channels // _DEPTH))
        together = max(1, _COLUMNS // width)
        columns = width * together
        row_tile, row_tiles = even_row_tiles(rows, max(24, _ROW_TILE_BYTES // (4 * depth)))
        checked_elements(row_tile * channels)
        groups = -(-self.outputs // columns)
        parts = 1 if pool.threads == 1 else min(groups, -(-_PARTS * pool.threads // row_tiles))
        scratch = scratch_offsets(
            align_to_line(4 * columns * depth),
            bias=4 * columns,
            scales=4 * columns,
            pixels=4 * row_tile,
        )
        self.workspace = pool.threads * scratch["thread_scratch"]
        fields = {
            **common,
            **scratch,
            "lanes": min(_MOST_LANES, width),
            "together": together,
            "depth": depth,
            "row_tile": row_tile,
            "parts": parts,
            "low": low,
            "high": high,
        }
        self.params = self._ffi.new("struct np_gemm_int8_weights_params *", fields)
        return self.params
