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

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Shape, Sizing
from narrowpass_planning.weights.weight import Array, Weight
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.convolve import CHANNELS_LAST, Convolve, Window
from narrowpass_xnn_cpu.lower.join import Sliced
from narrowpass_xnn_cpu.lower.linear import Linear
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.product import Product
from narrowpass_xnn_cpu.lower.steps import Permute, Reshaped
from narrowpass_xnn_cpu.native.operators import Movement, fp32_choice
from narrowpass_xnn_cpu.native.operators.winograd_choice import Image


def is_matmul(window: Window, groups: int) -> bool:
    """Return whether output pixels of different input pixels neither meet nor leave gaps."""
    apart = window.size == window.strides and not any(window.pads)
    return apart and max(window.dilations) == 1 and groups == 1 and fp32_choice.matmuls_are_ours()


def is_convolution(window: Window, groups: int) -> bool:
    """Return whether it is a convolution whose pads are not negative."""
    reach = _reach(window)
    fits = all(max(window.pads[i], window.pads[i + 2]) <= reach[i] for i in (0, 1))
    ours = fp32_choice.convolutions_are_ours()
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
    ours = groups == 1 and fp32_choice.convolutions_are_ours()
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
    movement = Movement(around, (1, 1), (1, 1), 1, op.limits)
    operator = fp32_choice.convolution(
        interleaved, bias, movement, op.epilogue, winograd=False, session=builder.session
    )
    perm = CHANNELS_LAST[rank]
    slot = builder.emit(
        Convolve(
            builder.at(op.required(0), perm),
            builder.scratch(op.output),
            operator,
            Window(taps, around, (1, 1), (1, 1), window.only_for),
            shape[0],
            operator.name,
            op.epilogue,
        )
    )
    if down > 1:

        def cut(shape: Shape) -> Shape:
            return (*shape[:3], down, along * outputs)

        slot = builder.emit(Reshaped(slot, builder.scratch(op.output), cut))
        slot = builder.emit(Permute(slot, builder.scratch(op.output), (0, 1, 3, 2, 4)))

    def join(shape: Shape) -> Shape:
        if rank == 3:
            return (shape[0], shape[1] * along, outputs)
        if down == 1:
            return (*shape[:2], shape[2] * along, outputs)
        return (shape[0], shape[1] * down, shape[3] * along, outputs)

    first, last = window.pads[:2], [p - e for p, e in zip(window.pads[2:], extra, strict=True)]

    def part(shape: Shape, _: Sizing) -> tuple[list[int], list[int], list[int]]:
        starts = [0, *first[4 - rank :], 0]
        ends = [0, *last[4 - rank :], 0]
        sizes = [n - a - b for n, a, b in zip(shape, starts, ends, strict=True)]
        if min(sizes[1:]) < 1:
            raise BackendError(f"nothing is left of the output of {list(shape)} within its pads")
        return starts, sizes, [1] * rank

    slot = builder.emit(Reshaped(slot, builder.scratch(op.output), join))
    builder.emit(Sliced(slot, builder.new(op.output), part), op.output, perm)


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
    product = Product(
        matrix, bias, op.epilogue, rows=None, accumulate="", activations="", session=builder.session
    )
    perm = CHANNELS_LAST[len(kernel.shape)]
    slot = builder.at(op.required(0), perm)
    slot = builder.emit(Linear(slot, builder.scratch(op.output), product))
    if high > 1:

        def cut(shape: Shape) -> Shape:
            return (*shape[:3], high, wide * outputs)

        slot = builder.emit(Reshaped(slot, builder.scratch(op.output), cut))
        slot = builder.emit(Permute(slot, builder.scratch(op.output), (0, 1, 3, 2, 4)))

    def join(shape: Shape) -> Shape:
        if len(perm) == 3:
            return (shape[0], shape[1] * wide, outputs)
        if high == 1:
            return (shape[0], shape[1], shape[2] * wide, outputs)
        return (shape[0], shape[1] * high, shape[3] * wide, outputs)

    builder.emit(Reshaped(slot, builder.new(op.output), join), op.output, perm)


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
    movement = Movement(pads, window.strides, window.dilations, 1, op.limits)
    operator = fp32_choice.convolution(
        kernel.then("turned", _turned),
        bias,
        movement,
        op.epilogue,
        image=image,
        winograd=builder.winograd,
        session=builder.session,
    )
    perm = CHANNELS_LAST[builder.rank(op.output)]
    step = Convolve(
        builder.at(op.required(0), perm),
        builder.new(op.output),
        operator,
        moved,
        kernel.shape[0],
        operator.name,
        op.epilogue,
    )
    builder.emit(step, op.output, perm)
