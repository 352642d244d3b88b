"""Depth-first fused blocks: depthwise convolutions of float32 with the matmuls around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operator import Operator
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution, PackedMatmul
from narrowpass_xnn_cpu.native.own.tiling import even_bands, line
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.native.problems.bounds import checked_shape

_STRIP_BYTES = 3 << 17
"""Of the inner images, what a thread works on at a time: it stays in L2."""
_SPANS = 4
"""For each thread, where there are several: one that is late leaves some of them to others."""
_LEAST_SPAN = 28
"""Rows of the expanded image: those that two spans need are computed twice."""


class Separable(Operator):
    """A convolution, a depthwise one, and a matmul of each pixel of that.

    The images between them are never in memory as a whole.

    Args:
        expand: the first convolution, or a matmul of each pixel; None for none.
        depthwise: the convolution.
        project: the last matmul, the only one that may end with a residual.

    Raises:
        BackendError: operators that do not follow each other, or have other residuals.
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
        reach = (depthwise.params.kernel[0] - 1) * depthwise.params.dilations[0] + 1
        span, spans = out_height, 1
        if pool.threads > 1:
            wanted = -(-_SPANS * pool.threads // batch)
            if expand is not None:
                wanted = min(wanted, max(height // _LEAST_SPAN, -(-pool.threads // batch)))
            span, spans = even_bands(out_height, -(-out_height // wanted))
        # A strip of n rows takes (n - 1) · step + reach rows of the ring, and n of the middle.
        ring_bytes, middle_bytes = 4 * inner * width, 4 * inner * out_width
        if expand is None:
            ring_bytes = 0
        room = _STRIP_BYTES - ring_bytes * (reach - step)
        strip, _ = even_bands(span, max(1, room // (ring_bytes * step + middle_bytes)), 2)
        ring = (strip - 1) * step + reach
        project.reshape_image((batch, out_height, out_width, inner), pool, strip)
        if isinstance(expand, PackedConvolution):
            expand.reshape(given, pool, ring)
        elif expand is not None:
            expand.reshape_image(given, pool, ring)
        middle = line(ring_bytes * ring)
        rows = middle + line(middle_bytes * strip)
        others = rows + line(8 * ring)
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
