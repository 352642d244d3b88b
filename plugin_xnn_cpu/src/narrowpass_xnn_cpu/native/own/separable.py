"""Depth-first fusion of an inverted residual block: expand, depthwise, project; float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operator import Operator
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution, PackedMatmul
from narrowpass_xnn_cpu.native.own.tiling import align_to_line, even_row_tiles
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool

_STRIP_BYTES = 3 << 17
"""Bytes of the intermediate strips of a thread, the ring buffer and the rows after it: they stay in
L2."""
_SPANS = 4
"""Spans for each thread, where there are several: others take over those of a slow one."""
_LEAST_SPAN = 28
"""Rows of the expanded image for a span, at least: rows that two spans read are computed twice."""


class Separable(Operator):
    """Depthwise separable convolution, with or without an expanding convolution before it.

    The convolutions run depth-first over strips of rows, so that intermediate images stay in cache
    and are never materialized. The first strip's rows are a ring buffer.

    Args:
        expand: the first convolution, as such or as a matmul of pixels; None where there is none.
        depthwise: the depthwise convolution.
        project: the 1 x 1 convolution, the only one whose epilogue may have a residual.

    Raises:
        BackendError: channels that do not match, or a residual of another than `project`.
    """

    call = "NP_FP32_SEPARABLE"

    def __init__(
        self,
        expand: PackedMatmul | PackedConvolution | None,
        depthwise: PackedConvolution,
        project: PackedMatmul,
    ) -> None:
        super().__init__()
        self._expand, self._depthwise, self._project = expand, depthwise, project
        inner = depthwise.channels
        if project.channels != inner or (expand is not None and expand.outputs != inner):
            raise BackendError(f"convolutions do not fit one of {inner} channels")
        if depthwise.problem.epilogue.residual or (
            expand is not None and expand.problem.epilogue.residual
        ):
            raise BackendError("only the last convolution takes a residual")
        self.channels = inner if expand is None else expand.channels
        self.outputs = project.outputs

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Reshape for an input of `shape` [N, H, W, C]; return the output's height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a convolution of {self.channels} channels got {channels}")
        given = batch, height, width, channels
        depthwise, expand, project = self._depthwise, self._expand, self._project
        inner = depthwise.channels
        if isinstance(expand, PackedConvolution):
            height, width = expand.reshape(given, pool)
        out_height, out_width = depthwise.reshape((batch, height, width, inner), pool)
        step = depthwise.params.strides[0]
        extent = depthwise.problem.geometry.extent[0]
        span, spans = out_height, 1
        if pool.threads > 1:
            wanted = -(-_SPANS * pool.threads // batch)
            if expand is not None:
                wanted = min(wanted, max(height // _LEAST_SPAN, -(-pool.threads // batch)))
            span, spans = even_row_tiles(out_height, -(-out_height // wanted))
        # A strip of n rows reads (n - 1) · step + extent rows of the ring, and writes n.
        ring_bytes, middle_bytes = 4 * inner * width, 4 * inner * out_width
        if expand is None:
            ring_bytes = 0
        room = _STRIP_BYTES - ring_bytes * (extent - step)
        strip, _ = even_row_tiles(span, max(1, room // (ring_bytes * step + middle_bytes)), 2)
        ring = (strip - 1) * step + extent
        project.reshape_image((batch, out_height, out_width, inner), pool, strip)
        if isinstance(expand, PackedConvolution):
            expand.reshape(given, pool, ring)
        elif expand is not None:
            expand.reshape_image(given, pool, ring)
        middle = align_to_line(ring_bytes * ring)
        rows = middle + align_to_line(middle_bytes * strip)
        others = rows + align_to_line(8 * ring)
        scratch = others + max(item.params.thread_scratch for item in (project, expand or project))
        self.workspace = pool.threads * scratch
        fields: dict[str, Any] = {
            "depthwise": depthwise.params[0],
            "project": project.params[0],
            "span": span,
            "spans": spans,
            "strip": strip,
            "ring": ring,
            "middle_offset": middle,
            "rows_offset": rows,
            "inner_offset": others,
            "thread_scratch": scratch,
        }
        if expand is not None:
            fields["expand"] = expand.params[0]
        self.params = self._ffi.new("struct np_fp32_separable_params *", fields)
        return out_height, out_width
