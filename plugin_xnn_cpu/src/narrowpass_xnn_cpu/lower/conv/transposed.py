"""Transposed convolutions that are lowered to a GEMM or to a plain convolution.

Where the stride equals the kernel size, output pixels of different input pixels do not overlap: it
is a GEMM with a [C, KH · KW · O] matrix, then depth-to-space. Where the stride is 1, it is a
convolution with the kernel rotated by 180 degrees (Dumoulin and Visin, A guide to convolution
arithmetic for deep learning, 2016). Where the kernel size is a multiple of the stride, as in
vocoders, it is a convolution with stride · stride · O output channels, then depth-to-space and a
crop of the pads (Shi et al., Is the deconvolution layer the same as a convolutional layer?, 2016).
Weights are packed through the weights cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Shape, Sizing, Slot
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST, Conv2d, KernelWindow
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul
from narrowpass_xnn_cpu.lower.movement.concat import Part, SliceLike
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.steps import Dim, Reshape, Transpose, axes_of
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Image


def is_matmul(kernel_window: KernelWindow, groups: int) -> bool:
    """Return whether the output blocks of input pixels neither overlap nor leave gaps."""
    apart = kernel_window.size == kernel_window.strides and not any(kernel_window.pads)
    return (
        apart
        and max(kernel_window.dilations) == 1
        and groups == 1
        and target.current().has_fp32_gemm
    )


def is_convolution(kernel_window: KernelWindow, groups: int) -> bool:
    """Return whether it is a plain convolution with pads of 0 or more."""
    reach = _reach(kernel_window)
    fits = all(max(kernel_window.pads[i], kernel_window.pads[i + 2]) <= reach[i] for i in (0, 1))
    ours = target.current().has_fp32_gemm
    return fits and max(kernel_window.strides) == 1 and groups == 1 and ours


def _reach(kernel_window: KernelWindow) -> tuple[int, int]:
    (height, width), (down, along) = kernel_window.size, kernel_window.dilations
    return (height - 1) * down, (width - 1) * along


def is_subpixel(kernel_window: KernelWindow, groups: int, extra: Sequence[int]) -> bool:
    """Return whether it is a plain convolution and depth-to-space (sub-pixel convolution).

    Args:
        kernel_window: of the transposed convolution.
        groups: of channels.
        extra: output padding, down and right.
    """
    ours = groups == 1 and target.current().has_fp32_gemm
    whole = all(k % s == 0 for k, s in zip(kernel_window.size, kernel_window.strides, strict=True))
    kept = all(e <= pad for e, pad in zip(extra, kernel_window.pads[2:], strict=True))
    return ours and whole and kept and max(kernel_window.dilations) == 1


def lower_subpixel(
    op: Op,
    builder: Builder,
    kernel: Weight,
    bias: Weight | None,
    kernel_window: KernelWindow,
    extra: Sequence[int],
) -> None:
    """Lower a transposed convolution with `is_subpixel`; the kernel is [O, KH, KW, C]."""
    outputs, high, wide, channels = kernel.shape
    (down, along), rank = kernel_window.strides, builder.rank(op.output)
    taps = high // down, wide // along

    def places(array: Array) -> Array:
        cut = array.reshape(outputs, taps[0], down, taps[1], along, channels)[:, ::-1, :, ::-1]
        ordered = cut.transpose(2, 4, 0, 1, 3, 5)
        return np.ascontiguousarray(ordered).reshape(-1, *taps, channels)

    shape = (down * along * outputs, *taps, channels)
    interleaved = kernel.then(f"places {down} {along}", places, shape)
    if bias is not None:
        times = down * along
        bias = bias.then(f"tile {times}", lambda x: np.tile(x, times), [times * outputs])
    padding = (taps[0] - 1, taps[1] - 1) * 2
    convolution = Conv2d(
        op.epilogue,
        weight=interleaved,
        bias=bias,
        kernel_window=KernelWindow(taps, padding, (1, 1), (1, 1), kernel_window.only_for),
        attributes=ConvAttributes(padding),
        outputs=shape[0],
        winograd=False,
    )
    perm = CHANNELS_LAST[rank]
    slot = builder.intermediate(convolution, [builder.slot_of(op.required(0), perm)], op.output)
    slot, join = _depth_to_space(op, builder, slot, (down, along), outputs)
    slot = builder.intermediate(join, [slot], op.output)
    first, last = (
        kernel_window.pads[:2],
        [p - e for p, e in zip(kernel_window.pads[2:], extra, strict=True)],
    )
    trim = Trim((0, *first[4 - rank :], 0), (0, *last[4 - rank :], 0))
    builder.compute(trim, [slot], op.output, perm)


def lower_matmul(
    op: Op, builder: Builder, kernel: Weight, bias: Weight | None, kernel_window: KernelWindow
) -> None:
    """Lower a transposed convolution with `is_matmul`; the kernel is [C, O, KH, KW], [C, O, KW]."""
    channels, outputs = kernel.shape[:2]
    high, wide = kernel_window.size
    image = kernel.reshape(channels, outputs, high, wide)
    matrix = image.transpose(0, 2, 3, 1).reshape(channels, high * wide * outputs)
    if bias is not None:
        times = high * wide
        bias = bias.then(f"tile {times}", lambda x: np.tile(x, times), [times * outputs])
    perm = CHANNELS_LAST[len(kernel.shape)]
    matmul = ConstantMatMul(op.epilogue, weight=matrix, bias=bias)
    slot = builder.intermediate(matmul, [builder.slot_of(op.required(0), perm)], op.output)
    slot, join = _depth_to_space(op, builder, slot, (high, wide), outputs)
    builder.compute(join, [slot], op.output, perm)


def _depth_to_space(
    op: Op, builder: Builder, slot: Slot, strides: tuple[int, int], outputs: int
) -> tuple[Slot, Reshape]:
    """Move elements from channels to the pixels between the strides.

    Args:
        op: the transposed convolution.
        builder: of the partition.
        slot: [N, H, W, strides · O], or [N, W, stride · O].
        strides: vertical and horizontal.
        outputs: O.

    Returns:
        A slot, and the view of it with the output pixels.
    """
    down, along = strides
    if builder.rank(op.output) == 3:
        return slot, Reshape((Dim((0,)), Dim((1,), along), Dim(times=outputs)))
    if down == 1:
        return slot, Reshape((*axes_of(0, 1), Dim((2,), along), Dim(times=outputs)))
    cut = Reshape((*axes_of(0, 1, 2), Dim(times=down), Dim(times=along * outputs)))
    slot = builder.intermediate(cut, [slot], op.output)
    slot = builder.intermediate(Transpose((0, 1, 3, 2, 4)), [slot], op.output)
    return slot, Reshape((Dim((0,)), Dim((1,), down), Dim((3,), along), Dim(times=outputs)))


@record
class Trim(SliceLike):
    """A crop of an image.

    Attributes:
        before: elements that are cropped at the start of each axis.
        after: elements that are cropped at the end of each axis.
    """

    mnemonic = "trim"
    before: tuple[int, ...]
    after: tuple[int, ...]

    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """See `SliceLike.part`."""
        sizes = [n - a - b for n, a, b in zip(shape, self.before, self.after, strict=True)]
        if min(sizes[1:]) < 1:
            raise BackendError(f"the output of {list(shape)} is empty within its pads")
        return list(self.before), sizes, [1] * len(shape)


def _rotate_180(kernel: Array) -> Array:
    return np.ascontiguousarray(kernel[:, ::-1, ::-1])


def lower_convolution(
    op: Op,
    builder: Builder,
    kernel: Weight,
    bias: Weight | None,
    kernel_window: KernelWindow,
    image: Image | None,
) -> None:
    """Lower a transposed convolution with `is_convolution`.

    Args:
        op: the operation.
        builder: of the partition.
        kernel: [O, KH, KW, C].
        bias: [O], or None.
        kernel_window: of the transposed convolution.
        image: known sizes of the input.
    """
    high, wide = _reach(kernel_window)
    top, left, bottom, right = kernel_window.pads
    pads = high - top, wide - left, high - bottom, wide - right
    direct = KernelWindow(
        kernel_window.size,
        pads,
        kernel_window.strides,
        kernel_window.dilations,
        kernel_window.only_for,
    )
    convolution = Conv2d(
        op.epilogue,
        weight=kernel.then("turned", _rotate_180),
        bias=bias,
        kernel_window=direct,
        attributes=ConvAttributes(pads, kernel_window.strides, kernel_window.dilations),
        outputs=kernel.shape[0],
        image=image,
        winograd=builder.numerics.winograd,
    )
    perm = CHANNELS_LAST[builder.rank(op.output)]
    builder.compute(convolution, [builder.slot_of(op.required(0), perm)], op.output, perm)
