"""Transposed convolutions that are a GEMM, or a convolution, with the same weights otherwise.

Where the stride is the size of the kernel, each input pixel gives output pixels of its own: rows of
a GEMM with [C, KH · KW · O], whose pieces are then moved to their lines. Where the stride is 1,
it is the convolution with the kernel turned by 180 degrees (Dumoulin and Visin, A guide to
convolution arithmetic for deep learning, 2016). Where the size of the kernel is a multiple of the
stride, as in vocoders, it is a convolution with an output channel for each of the stride's places,
which are moved there and cut to the pads (Shi et al., Is the deconvolution layer the same as a
convolutional layer?, 2016). Weights are packed through the weights cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Shape, Sizing, Slot
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST, Conv2d, Window
from narrowpass_xnn_cpu.lower.matmul.constant import ConstantMatMul
from narrowpass_xnn_cpu.lower.movement.concat import Part, SliceLike
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Dim, Reshape, Transpose, axes_of
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Image


def is_matmul(window: Window, groups: int) -> bool:
    """Return whether output pixels of different input pixels neither meet nor leave gaps."""
    apart = window.size == window.strides and not any(window.pads)
    return apart and max(window.dilations) == 1 and groups == 1 and target.current().has_fp32_gemm


def is_convolution(window: Window, groups: int) -> bool:
    """Return whether it is a convolution whose pads are not negative."""
    reach = _reach(window)
    fits = all(max(window.pads[i], window.pads[i + 2]) <= reach[i] for i in (0, 1))
    ours = target.current().has_fp32_gemm
    return fits and max(window.strides) == 1 and groups == 1 and ours


def _reach(window: Window) -> tuple[int, int]:
    (height, width), (down, along) = window.size, window.dilations
    return (height - 1) * down, (width - 1) * along


def is_interleaved(window: Window, groups: int, extra: Sequence[int]) -> bool:
    """Return whether places between the strides are output channels of a convolution.

    Args:
        window: of the transposed convolution.
        groups: of channels.
        extra: output padding, down and right.
    """
    ours = groups == 1 and target.current().has_fp32_gemm
    whole = all(k % s == 0 for k, s in zip(window.size, window.strides, strict=True))
    kept = all(e <= pad for e, pad in zip(extra, window.pads[2:], strict=True))
    return ours and whole and kept and max(window.dilations) == 1


def lower_interleaved(
    op: Op,
    builder: Builder,
    kernel: Weight,
    bias: Weight | None,
    window: Window,
    extra: Sequence[int],
) -> None:
    """Lower one of `is_interleaved`; the kernel is [O, KH, KW, C]."""
    outputs, high, wide, channels = kernel.shape
    (down, along), rank = window.strides, builder.rank(op.output)
    taps = high // down, wide // along

    def places(array: Array) -> Array:
        cut = array.reshape(outputs, taps[0], down, taps[1], along, channels)[:, ::-1, :, ::-1]
        moved = cut.transpose(2, 4, 0, 1, 3, 5)
        return np.ascontiguousarray(moved).reshape(-1, *taps, channels)

    shape = (down * along * outputs, *taps, channels)
    interleaved = kernel.then(f"places {down} {along}", places, shape)
    if bias is not None:
        times = down * along
        bias = bias.then(f"tile {times}", lambda x: np.tile(x, times), [times * outputs])
    around = (taps[0] - 1, taps[1] - 1) * 2
    convolution = Conv2d(
        op.epilogue,
        weight=interleaved,
        bias=bias,
        window=Window(taps, around, (1, 1), (1, 1), window.only_for),
        movement=ConvAttributes(around),
        outputs=shape[0],
        winograd=False,
    )
    perm = CHANNELS_LAST[rank]
    slot = builder.part(convolution, [builder.at(op.required(0), perm)], op.output)
    slot, join = _spread(op, builder, slot, (down, along), outputs)
    slot = builder.part(join, [slot], op.output)
    first, last = window.pads[:2], [p - e for p, e in zip(window.pads[2:], extra, strict=True)]
    trim = Trim((0, *first[4 - rank :], 0), (0, *last[4 - rank :], 0))
    builder.compute(trim, [slot], op.output, perm)


def lower_matmul(
    op: Op, builder: Builder, kernel: Weight, bias: Weight | None, window: Window
) -> None:
    """Lower one of `is_matmul`; the kernel is [C, O, KH, KW], or [C, O, KW]."""
    channels, outputs = kernel.shape[:2]
    high, wide = window.size
    image = kernel.reshape(channels, outputs, high, wide)
    matrix = image.transpose(0, 2, 3, 1).reshape(channels, high * wide * outputs)
    if bias is not None:
        times = high * wide
        bias = bias.then(f"tile {times}", lambda x: np.tile(x, times), [times * outputs])
    perm = CHANNELS_LAST[len(kernel.shape)]
    matmul = ConstantMatMul(op.epilogue, weight=matrix, bias=bias)
    slot = builder.part(matmul, [builder.at(op.required(0), perm)], op.output)
    slot, join = _spread(op, builder, slot, (high, wide), outputs)
    builder.compute(join, [slot], op.output, perm)


def _spread(
    op: Op, builder: Builder, slot: Slot, strides: tuple[int, int], outputs: int
) -> tuple[Slot, Reshape]:
    """Move pixels between the strides from channels to their lines.

    Args:
        op: the transposed convolution.
        builder: of the partition.
        slot: [N, H, W, strides · O], or [N, W, stride · O].
        strides: down and along.
        outputs: O.

    Returns:
        A slot, and the reshape of it that has the output's pixels.
    """
    down, along = strides
    if builder.rank(op.output) == 3:
        return slot, Reshape((Dim((0,)), Dim((1,), along), Dim(times=outputs)))
    if down == 1:
        return slot, Reshape((*axes_of(0, 1), Dim((2,), along), Dim(times=outputs)))
    cut = Reshape((*axes_of(0, 1, 2), Dim(times=down), Dim(times=along * outputs)))
    slot = builder.part(cut, [slot], op.output)
    slot = builder.part(Transpose((0, 1, 3, 2, 4)), [slot], op.output)
    return slot, Reshape((Dim((0,)), Dim((1,), down), Dim((3,), along), Dim(times=outputs)))


@dataclass(frozen=True)
class Trim(SliceLike):
    """An image without its border.

    Attributes:
        before: elements that are cut off at the start of each axis.
        after: the same at the end.
    """

    mnemonic = "trim"
    before: tuple[int, ...]
    after: tuple[int, ...]

    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """See `SliceLike.part`."""
        sizes = [n - a - b for n, a, b in zip(shape, self.before, self.after, strict=True)]
        if min(sizes[1:]) < 1:
            raise BackendError(f"nothing is left of the output of {list(shape)} within its pads")
        return list(self.before), sizes, [1] * len(shape)


def _turned(kernel: Array) -> Array:
    return np.ascontiguousarray(kernel[:, ::-1, ::-1])


def lower_convolution(
    op: Op,
    builder: Builder,
    kernel: Weight,
    bias: Weight | None,
    window: Window,
    image: Image | None,
) -> None:
    """Lower one of `is_convolution`.

    Args:
        op: the operation.
        builder: of the partition.
        kernel: [O, KH, KW, C].
        bias: [O], or None.
        window: of the transposed convolution.
        image: what is known of the input.
    """
    high, wide = _reach(window)
    top, left, bottom, right = window.pads
    pads = high - top, wide - left, high - bottom, wide - right
    moved = Window(window.size, pads, window.strides, window.dilations, window.only_for)
    convolution = Conv2d(
        op.epilogue,
        weight=kernel.then("turned", _turned),
        bias=bias,
        window=moved,
        movement=ConvAttributes(pads, window.strides, window.dilations),
        outputs=kernel.shape[0],
        image=image,
        winograd=builder.winograd,
    )
    perm = CHANNELS_LAST[builder.rank(op.output)]
    builder.compute(convolution, [builder.at(op.required(0), perm)], op.output, perm)
