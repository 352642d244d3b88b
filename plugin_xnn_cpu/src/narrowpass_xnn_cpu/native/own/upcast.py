"""Matmuls of many rows with a matrix of int8 that is packed for few: upcast in L2.

XNNPACK's kernels for float32 rows and int8 weights upcast each weight again for every seven rows.
The kernel here upcasts it once for a band of rows, in L2, and the micro-kernels of float32
multiply: as many rows as a prompt has take as long as with a matrix of float32.
"""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.own.panels import PanelMatmul, Panels
from narrowpass_xnn_cpu.native.own.tiling import checked_elements, even_bands, line, offsets
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.problems.bounds import Range, checked_range, float32

LEAST_ROWS = 16
"""With fewer, upcasting takes longer than it saves: 14 are two of XNNPACK's tiles."""
_COLUMNS = 64
"""That are upcast together: those of the widest tile of float32."""
_DEPTH = 768
"""Inputs of a part: its 64 columns of floats stay in L2."""
_BAND_BYTES = 1 << 19
"""Of such inputs of all rows of a band, which stay there too."""
_PARTS = 4
"""For each thread: one that is late leaves some of them to others."""


def widens() -> bool:
    """Return whether the kernel is faster than XNNPACK's here: it is written for 16 lanes."""
    return target.current().fp32_packing >= int(extension().lib.NP_INT8_WEIGHTS_NR)


class UpcastMatmul(PanelMatmul):
    """Rows of float32 times a matrix of int8 that another operator has packed in panels.

    Weights are upcast and scaled before they are multiplied, and accumulators are float32.

    Args:
        panels: the matrix.
        limits: what the output is clamped to.
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
        band, bands = even_bands(rows, max(24, _BAND_BYTES // (4 * depth)))
        checked_elements(band * channels)
        groups = -(-self.outputs // columns)
        parts = 1 if pool.threads == 1 else min(groups, -(-_PARTS * pool.threads // bands))
        scratch = offsets(line(4 * columns * depth), bias=4 * columns, pixels=4 * band)
        self.workspace = pool.threads * scratch["thread_scratch"]
        fields = {
            **common,
            **scratch,
            "together": together,
            "depth": depth,
            "row_tile": band,
            "parts": parts,
            "low": low,
            "high": high,
        }
        self.params = self._ffi.new("struct np_gemm_int8_weights_params *", fields)
        return self.params
