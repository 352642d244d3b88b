"""XNNPACK's dynamic per-token quantization of rows, which its matmuls of int8 run first."""

from __future__ import annotations

from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.xnnpack.operator import XnnOperator

_FUNCTIONS = {
    "int8": ("xnn_create_convert_nc_f32_qd8", "xnn_reshape_convert_nc_f32_qd8"),
    "uint8": ("xnn_create_convert_nc_f32_qdu8", "xnn_reshape_convert_nc_f32_qdu8"),
}
"""By the type of the quantized rows: to create and to reshape."""


class RowQuantizer(XnnOperator):
    """Quantizes rows of float32, each by its own range; not on a tape by itself."""

    call = "NP_ROWS_TO_INT8"
    kind = "rows to int8"

    def __init__(self, dtype: str) -> None:
        super().__init__()
        creating, self._function = _FUNCTIONS[dtype]
        self._create(creating)

    def reshape(self, rows: int, channels: int, pool: ThreadPool) -> None:
        """Reshape for `rows` dense rows of `channels`."""
        sizes = rows, channels, channels, channels
        self._reshape(self._function, (rows, channels), *sizes, pool.handle)
