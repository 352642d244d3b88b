"""Conv and ConvTranspose: matmuls with the columns of some elements of the kernel at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from narrowpass_reference.operators.kernel_windows import KernelWindow

Array = np.ndarray[Any, Any]


_AT_ONCE = 1 << 18
"""So many elements are copied for a matmul, or as many as the images have."""


class Conv(OpRun):
    """Needs memory for the images and the result; onnx's for zeros between a kernel's elements.

    Accumulators are float32 for float16 and bfloat16, and rounded before the bias is added.
    """

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        groups = group or 1
        if x.ndim < 3:
            raise ValueError(f"X must have at least 3 dimensions, not {x.ndim}")
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ValueError(f"W {list(w.shape)} does not fit X {list(x.shape)}, group {groups}")
        kernel_window = KernelWindow.of(
            x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad
        )
        wide = _wide(x.dtype)
        padded = kernel_window.padded(x, 0)
        batch, outputs = x.shape[0], w.shape[0]
        flat = w.astype(wide, copy=False).reshape(
            groups, outputs // groups, w.shape[1], math.prod(w.shape[2:])
        )
        weights = np.ascontiguousarray(flat.swapaxes(2, 3))  # [G, M, taps, C]
        each = outputs // groups
        places = math.prod(kernel_window.counts)
        result = np.zeros((batch, groups, outputs // groups, places), wide)
        taps = list(kernel_window.taps())
        at_once = max(1, max(_AT_ONCE, x.size) // max(1, batch * x.shape[1] * places))
        for start in range(0, len(taps), at_once):
            some = taps[start : start + at_once]
            shape = (batch, groups, len(some), w.shape[1], *kernel_window.counts)
            rows = np.empty(shape, wide)
            for index, tap in enumerate(some):
                part = kernel_window.view(padded, tap)
                rows[:, :, index] = part.reshape(batch, groups, w.shape[1], *kernel_window.counts)
            matrices = weights[:, :, start : start + at_once]
            depth = len(some) * w.shape[1]
            result += matrices.reshape(groups, each, depth) @ rows.reshape(
                batch, groups, depth, places
            )
        shaped = result.reshape(batch, outputs, *kernel_window.counts).astype(x.dtype, copy=False)
        return (shaped if b is None else shaped + _along_channels(b, x.ndim),)


class ConvTranspose(OpRun):
    """Takes groups, and `output_shape` with `pads` derived from it; onnx's fails or ignores them.

    Accumulators are float32 for float16 and bfloat16, and rounded before the bias is added.
    """

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        groups, rank = group or 1, x.ndim - 2
        if x.shape[1] != w.shape[0] or w.shape[0] % groups:
            raise ValueError(f"W {list(w.shape)} does not fit X {list(x.shape)}, group {groups}")
        strides = strides or [1] * rank
        dilations = dilations or [1] * rank
        full = [
            (size - 1) * stride + (kernel - 1) * dilation + 1
            for size, kernel, stride, dilation in zip(
                x.shape[2:], w.shape[2:], strides, dilations, strict=True
            )
        ]
        starts, sizes = _placed(
            full, x.shape[2:], strides, auto_pad, output_padding, output_shape, pads
        )
        wide = _wide(x.dtype)
        channels = w.shape[1]
        split = w.astype(wide, copy=False).reshape(
            groups, w.shape[0] // groups, channels, math.prod(w.shape[2:])
        )
        weights = np.ascontiguousarray(split.transpose(3, 0, 2, 1))  # [taps, G, M, C]
        flat = (x.shape[0], groups, w.shape[0] // groups, math.prod(x.shape[2:]))
        rows = x.reshape(flat).astype(wide, copy=False)
        # The kernel window is the one of the convolution whose transpose this is.
        kernel_window = KernelWindow.of(full, w.shape[2:], strides, dilations)
        padded = np.zeros((x.shape[0], groups * channels, *full), wide)
        for matrices, tap in zip(weights, kernel_window.taps(), strict=True):
            part = matrices @ rows
            target = kernel_window.view(padded, tap)
            target += part.reshape(target.shape)
        result = np.zeros((*padded.shape[:2], *sizes), x.dtype)
        there: list[Any] = [...]
        here: list[Any] = [...]
        for start, size, end in zip(starts, sizes, full, strict=True):
            there.append(slice(max(0, -start), max(0, min(size, end - start))))
            here.append(slice(max(0, start), max(0, min(end, start + size))))
        result[tuple(there)] = padded[tuple(here)]
        return (result if b is None else result + _along_channels(b, x.ndim),)


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float64 if dtype == np.float64 else np.float32


def _along_channels(bias: Array, rank: int) -> Array:
    return bias.reshape(-1, *(1,) * (rank - 2))


def _placed(
    full: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    auto_pad: str | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """Return where the result of a ConvTranspose begins in the full one, and its sizes."""
    rank = len(full)
    more = output_padding or [0] * rank
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape or same:
        wanted = list(output_shape or [n * s for n, s in zip(sizes, strides, strict=True)])[-rank:]
        totals = [size + extra - goal for size, extra, goal in zip(full, more, wanted, strict=True)]
        lower = auto_pad != "SAME_UPPER"
        # Pads are never below 0: an output that is larger than the full one is so at its end.
        return [max(0, total + lower) // 2 for total in totals], wanted
    pads = [0] * 2 * rank if pads is None or auto_pad == "VALID" else pads
    padded = [
        size + extra - before - after
        for size, extra, before, after in zip(full, more, pads[:rank], pads[rank:], strict=True)
    ]
    return list(pads[:rank]), padded
