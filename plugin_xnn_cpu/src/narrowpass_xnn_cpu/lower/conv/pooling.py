"""Pooling over windows and over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST, Window
from narrowpass_xnn_cpu.lower.elementwise.reduction import Reduce
from narrowpass_xnn_cpu.lower.movement.axes import check_filled
from narrowpass_xnn_cpu.lower.op import Op, needs, needs_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedOp
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.problems.bounds import (
    check_kernel_size,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import movement


@dataclass(frozen=True)
class Pool(Computation):
    """A pooling of [N, H, W, C]; pads depend on the sizes, where these are rounded up.

    Attributes:
        window: the kernel window and how it moves.
        maximum: whether it is the greatest element, and not the average.
        ceil: whether sizes of the result are rounded up.
    """

    mnemonic = "pool"
    window: Window
    maximum: bool
    ceil: bool

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        name = "max pooling" if self.maximum else "average pooling"
        return f"xnn {name}" if op.output.dtype.itemsize == 1 else name

    def pack(self, op: LoweredOp, session: Session | None) -> Int8Pools | None:
        """See `Computation.pack`."""
        return Int8Pools(self.window) if op.output.dtype.itemsize == 1 else None

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        image = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        window, pools = self.window, step.packed
        window.check(image)
        # An empty batch has an output too, of a size that only a full one tells.
        full = (max(1, image[0]), *image[1:])
        pads = self._pads(image)
        if pools is not None:
            height, width = pools.of(pads).reshape(full, sizing.pool)
        else:
            height, width = self._counts(full, pads)
        line: Shape = (image[0], width, image[3])
        result: Shape = (image[0], height, width, image[3]) if len(shape) == 4 else line
        if not image[0]:
            return Run(result)
        if pools is not None:
            return Run(result, pools.of(pads).call, pools.of(pads))
        moves = window.size, window.strides, window.dilations, pads[:2]
        params = kernels.pool(image, (height, width), *moves, maximum=self.maximum)
        return Run(result, "NP_POOL", params=params)

    def _counts(self, image: Shape, pads: tuple[int, ...]) -> tuple[int, int]:
        """Return the height and width of the output."""
        window = self.window
        checked_shape(image, 4)
        checked_pixels(pads, 0, "padding")
        checked_pixels(
            (*window.size, *window.strides, *window.dilations), 1, "window, stride or dilation"
        )
        check_kernel_size(image, window.size, pads, window.dilations)
        reaches = [
            (size - 1) * step + 1 for size, step in zip(window.size, window.dilations, strict=True)
        ]
        height, width = (
            (image[1 + axis] + pads[axis] + pads[2 + axis] - reaches[axis]) // window.strides[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width

    def _pads(self, image: Shape) -> tuple[int, ...]:
        """Return the pads, with what rounding up adds at the end."""
        if not self.ceil:
            return self.window.pads
        window, pads = self.window, list(self.window.pads)
        for axis in (0, 1):
            reach = (window.size[axis] - 1) * window.dilations[axis] + 1
            padded = image[1 + axis] + pads[axis] + pads[2 + axis]
            stride = window.strides[axis]
            count = -(-(padded - reach) // stride) + 1
            # A window that would start in the padding after the input is left out.
            if (count - 1) * stride >= image[1 + axis] + pads[axis]:
                count -= 1
            pads[2 + axis] += max(0, (count - 1) * stride + reach - padded)
        return tuple(pads)


class Int8Pools:
    """XNNPACK's max pooling of int8, whose pads are those of the operator.

    Args:
        window: the kernel window and how it moves.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._last: tuple[tuple[int, ...], movement.MaxPoolS8] | None = None

    def of(self, pads: tuple[int, ...]) -> movement.MaxPoolS8:
        """Return the operator for these pads."""
        if self._last is None or self._last[0] != pads:
            window = self._window
            operator = movement.MaxPoolS8(window.size, pads, window.strides, window.dilations)
            self._last = pads, operator
        return self._last[1]


@dataclass(frozen=True)
class PadImage(Computation):
    """Zeros around images: for averages that count the padding.

    Attributes:
        pads: top, left, bottom, right.
    """

    mnemonic = "pad_image"
    kernel = "xnn pad"
    pads: tuple[int, int, int, int]

    def pack(self, op: LoweredOp, session: Session | None) -> movement.Pad:
        """See `Computation.pack`."""
        return movement.Pad(0.0)

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        top, left, bottom, right = self.pads
        if len(shape) == 4:
            before, after = [0, top, left, 0], [0, bottom, right, 0]
        else:
            before, after = [0, left, 0], [0, right, 0]
        if not elements(shape[1:-1]):
            raise BackendError(f"an input of shape {list(shape)} has nothing to pool")
        result = tuple(map(sum, zip(before, shape, after, strict=True)))
        if not elements(shape):
            return Run(result)
        step.packed.reshape(shape, before, after, sizing.pool)
        return Run(result, step.packed.call, step.packed)


def _window(op: Op, facts: Facts) -> Window:
    dims = facts.dims(op.input(0))
    return Window.of(op, op.get("kernel_shape", ()), None if dims is None else dims[2:])


def _check_pool(op: Op, facts: Facts) -> str | None:
    maximum = op.kind == "MaxPool"
    reason = check_filled(op, facts) if maximum else needs_floats(op, facts)
    if reason:
        return reason
    if facts.rank(op.input(0)) not in CHANNELS_LAST:
        return f"pooling of inputs of rank {facts.rank(op.input(0))} has no kernel"
    if len(op.outputs) > 1 and (op.outputs[1].uses() or op.outputs[1].name in facts.needed):
        return "the indices of the maxima are used"
    try:
        window = _window(op, facts)
    except BackendError as error:
        return str(error)
    ceil = bool(op.get("ceil_mode", 0))
    if ceil and op.get("auto_pad", "NOTSET") != "NOTSET":
        return "ceil_mode with auto_pad is not covered"
    for axis in (0, 1):
        if max(window.pads[axis], window.pads[2 + axis]) >= (
            (window.size[axis] - 1) * window.dilations[axis] + 1
        ):
            return "windows may lie in the padding altogether"
    if maximum:
        return None
    if window.dilations != (1, 1):
        return "averages over dilated windows have no kernel"
    if op.get("count_include_pad", 0) and ceil:
        return "averages that count the padding, with ceil_mode, have no kernel"
    return None


def _max_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    window = _window(op, builder.facts)
    ceil = bool(op.get("ceil_mode", 0))
    pool = Pool(window, maximum=True, ceil=ceil)
    builder.compute(pool, [builder.at(given, perm)], op.output, perm)


def _average_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    window = _window(op, builder.facts)
    slot = builder.at(given, perm)
    if op.get("count_include_pad", 0) and any(window.pads):
        slot = builder.part(PadImage(window.pads), [slot], given)
        window = Window(window.size, (0, 0, 0, 0), window.strides, window.dilations)
    pool = Pool(window, maximum=False, ceil=bool(op.get("ceil_mode", 0)))
    builder.compute(pool, [slot], op.output, perm)


def _check_global(op: Op, facts: Facts) -> str | None:
    bytes_too = (ir.DataType.INT8,) if op.kind == "GlobalMaxPool" else ()
    reason = needs(op.required(0), facts, ir.DataType.FLOAT, *bytes_too)
    if reason:
        return reason
    if facts.rank(op.input(0)) in (None, 0, 1, 2):
        return "its input has no dimensions to pool over"
    return None


def _global_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    perm = CHANNELS_LAST.get(rank, builder.layout(given))
    axes = tuple(i for i, axis in enumerate(perm) if axis >= 2)
    reduce = Reduce("mean" if op.kind == "GlobalAveragePool" else "max", axes)
    builder.compute(reduce, [builder.at(given, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("MaxPool", lower=_max_pool, check=_check_pool),
    *rules("AveragePool", lower=_average_pool, check=_check_pool),
    *rules("GlobalAveragePool", "GlobalMaxPool", lower=_global_pool, check=_check_global),
)
