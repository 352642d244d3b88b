"""Depthwise convolutions of float32 together with the products around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import Operator, checked_shape
from narrowpass_xnn_cpu.native.operators.tiled_depthwise_fp32 import TiledDepthwise
from narrowpass_xnn_cpu.native.operators.tiled_fp32 import TiledFullyConnected
from narrowpass_xnn_cpu.native.pool import ThreadPool

_STRIP_BYTES = 1 << 18
"""Of the inner images, what a thread works on at a time: it stays in the second cache."""
_SPANS = 4
"""For each thread, where there are several: one that is late leaves some of them to others."""


class Separable(Operator):
    """A product of each pixel, a depthwise convolution, and a product of each of its pixels.

    The images between them are never in memory as a whole.

    Args:
        expand: the first product; None for none.
        depthwise: the convolution.
        project: the last product, the only one that may end with a residual.

    Raises:
        BackendError: operators that do not follow each other, or have other residuals.
    """

    call = "NP_FP32_SEPARABLE"
    maker = ""

    def __init__(
        self,
        expand: TiledFullyConnected | None,
        depthwise: TiledDepthwise,
        project: TiledFullyConnected,
    ) -> None:
        super().__init__()
        self.handle = self._ffi.NULL
        self._expand, self._depthwise, self._project = expand, depthwise, project
        inner = depthwise.channels
        if project.channels != inner or (expand is not None and expand.outputs != inner):
            raise BackendError(f"products do not fit a convolution of {inner} channels")
        if depthwise.epilogue.residual or (expand is not None and expand.epilogue.residual):
            raise BackendError("only the last product takes a residual")
        self.channels = inner if expand is None else expand.channels
        self.outputs = project.outputs

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        depthwise, expand = self._depthwise, self._expand
        out_height, out_width = depthwise.reshape((batch, height, width, depthwise.channels), pool)
        checked_shape((batch, out_height, out_width, self.outputs))
        inner = 4 * depthwise.channels
        step = depthwise.params.strides[0]
        reach = (depthwise.params.window[0] - 1) * depthwise.params.dilations[0] + 1
        # A strip of n rows takes (n - 1) · step + reach rows of the ring, and n of the middle.
        ring_bytes = 0 if expand is None else inner * width
        room = _STRIP_BYTES - ring_bytes * (reach - step)
        most = max(1, room // (ring_bytes * step + inner * out_width))
        span, spans = out_height, 1
        if pool.threads > 1:
            wanted = -(-_SPANS * pool.threads // batch)
            span, spans = tiled.even_bands(out_height, -(-out_height // wanted), 2)
        strip, _ = tiled.even_bands(span, most, 2)
        ring = (strip - 1) * step + reach
        ring_rows = 0 if expand is None else ring
        middle = tiled.line(ring_bytes * ring_rows)
        rows = middle + tiled.line(inner * out_width * strip)
        pixels = rows + tiled.line(8 * ring)
        counted = ring_rows * width * self.channels, strip * out_width * depthwise.channels
        tiled.checked_elements(max(counted))
        scratch = pixels + tiled.line(4 * (ring_rows * width + strip * out_width))
        self.workspace = pool.threads * scratch
        given: dict[str, Any] = {
            "depthwise": depthwise.params[0],
            "project": _pointwise(self._project),
            "lanes": self._project.lanes,
            "span": span,
            "spans": spans,
            "strip": strip,
            "ring": ring,
            "middle_offset": middle,
            "rows_offset": rows,
            "pixels_offset": pixels,
            "thread_scratch": scratch,
        }
        if expand is not None:
            given["expand"] = _pointwise(expand)
        self.params = self._ffi.new("struct np_fp32_separable_params *", given)
        return out_height, out_width


def _pointwise(product: TiledFullyConnected) -> dict[str, Any]:
    """Give the fields of ``struct np_fp32_pointwise``."""
    return {
        "packed": product.packed,
        "inputs": product.channels,
        "outputs": product.outputs,
        "epilogue": product.epilogue.params(),
    }
