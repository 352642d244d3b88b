"""Products of many rows with a matrix of int8 that is packed for few.

XNNPACK's kernels for float32 rows and int8 weights widen each weight again for every seven rows.
The kernel here widens it once for a band of rows, in the second cache, and the tiles of float32
multiply: as many rows as a prompt has take as long as with a matrix of float32.
"""

from __future__ import annotations

from typing import Any

from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import Range, checked_range
from narrowpass_xnn_cpu.native.operators.panels import Layout, PanelProduct
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import lanes
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.entry import Block

LEAST_ROWS = 16
"""With fewer, widening takes longer than it saves: 14 are two of XNNPACK's tiles."""
_COLUMNS = 64
"""That are widened together: those of the widest tile of float32."""
_DEPTH = 768
"""Inputs of a part: its 64 columns of floats stay in the second cache."""
_BAND_BYTES = 1 << 19
"""Of such inputs of all rows of a band, which stay there too."""
_PARTS = 4
"""For each thread: one that is late leaves some of them to others."""


def widens() -> bool:
    """Tell whether the kernel is faster than XNNPACK's here: it is written for 16 lanes."""
    return lanes() >= int(extension().lib.NP_INT8_WEIGHTS_NR)


class WidenedProduct(PanelProduct):
    """Rows of float32 times a matrix of int8 that another operator has packed.

    Weights are widened and scaled before they are multiplied, and sums are float32.

    The layout is that of panels of int8.

    It takes what `PanelProduct` takes, and more.

    Args:
        limits: what the output is clamped to.
    """

    call = "NP_GEMM_INT8_WEIGHTS"

    def __init__(
        self,
        block: Block,
        owner: object,
        layout: Layout,
        channels: int,
        outputs: int,
        limits: Range,
    ) -> None:
        super().__init__(block, owner, layout, channels, outputs)
        self._limits = checked_range(limits)

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        product = self._product(rows)
        width, channels = self._layout.width, self.channels
        low, high = map(tiled.float32, self._limits)
        depth = -(-channels // -(-channels // _DEPTH))
        together = max(1, _COLUMNS // width)
        band, bands = tiled.even_bands(rows, max(24, _BAND_BYTES // (4 * depth)))
        tiled.checked_elements(band * channels)
        groups = -(-self.outputs // (width * together))
        parts = 1 if pool.threads == 1 else min(groups, -(-_PARTS * pool.threads // bands))
        columns = width * together
        bias_offset = tiled.line(4 * columns * depth)
        pixels_offset = bias_offset + tiled.line(4 * columns)
        scratch = pixels_offset + tiled.line(4 * band)
        self.workspace = pool.threads * scratch
        fields = {
            **product,
            "together": together,
            "depth": depth,
            "row_tile": band,
            "parts": parts,
            "low": low,
            "high": high,
            "bias_offset": bias_offset,
            "pixels_offset": pixels_offset,
            "thread_scratch": scratch,
        }
        self.params = self._ffi.new("struct np_gemm_int8_weights_params *", fields)
        return self.params
