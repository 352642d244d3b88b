"""Max and average pooling, local and global."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST, KernelWindow
from narrowpass_xnn_cpu.lower.elementwise.reduction import Reduce
from narrowpass_xnn_cpu.lower.movement.axes import check_float_or_int8
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.problems.bounds import (
    check_kernel_size,
    checked_pixels,
    checked_shape,
)
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import movement


@record
class Pool(Computation):
    """Max or average pooling of [N, H, W, C].

    Attributes:
        kernel_window: kernel size, pads, strides and dilations.
        maximum: whether it is max pooling, not average pooling.
        ceil: whether output sizes are rounded up (``ceil_mode``).
    """

    mnemonic = "pool"
    kernel_window: KernelWindow
    maximum: bool
    ceil: bool

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        name = "max pooling" if self.maximum else "average pooling"
        return f"xnn {name}" if op.output.dtype.itemsize == 1 else name

    def pack(self, op: LoweredOp, session: Session | None) -> Int8Pools | None:
        """See `Computation.pack`."""
        return Int8Pools(self.kernel_window) if op.output.dtype.itemsize == 1 else None

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        image = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        kernel_window, pools = self.kernel_window, step.packed
        kernel_window.check(image)
        # The height and width of an empty batch are those of a batch of 1.
        full = (max(1, image[0]), *image[1:])
        pads = self._pads(image)
        if pools is not None:
            height, width = pools.of(pads).reshape(full, sizing.pool)
        else:
            height, width = self._output_size(full, pads)
        line: Shape = (image[0], width, image[3])
        result: Shape = (image[0], height, width, image[3]) if len(shape) == 4 else line
        if not image[0]:
            return Run(result)
        if pools is not None:
            return Run(result, pools.of(pads).call, pools.of(pads))
        moves = kernel_window.size, kernel_window.strides, kernel_window.dilations, pads[:2]
        params = kernels.pool(image, (height, width), *moves, maximum=self.maximum)
        return Run(result, "NP_POOL", params=params)

    def _output_size(self, image: Shape, pads: tuple[int, ...]) -> tuple[int, int]:
        """Return the height and width of the output."""
        kernel_window = self.kernel_window
        checked_shape(image, 4)
        checked_pixels(pads, 0, "padding")
        checked_pixels(
            (*kernel_window.size, *kernel_window.strides, *kernel_window.dilations),
            1,
            "kernel size, stride or dilation",
        )
        check_kernel_size(image, kernel_window.size, pads, kernel_window.dilations)
        reaches = [
            (size - 1) * step + 1
            for size, step in zip(kernel_window.size, kernel_window.dilations, strict=True)
        ]
        height, width = (
            (image[1 + axis] + pads[axis] + pads[2 + axis] - reaches[axis])
            // kernel_window.strides[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width

    def _pads(self, image: Shape) -> tuple[int, ...]:
        """Return the pads, extended at the end where output sizes are rounded up."""
        if not self.ceil:
            return self.kernel_window.pads
        kernel_window, pads = self.kernel_window, list(self.kernel_window.pads)
        for axis in (0, 1):
            reach = (kernel_window.size[axis] - 1) * kernel_window.dilations[axis] + 1
            padded = image[1 + axis] + pads[axis] + pads[2 + axis]
            stride = kernel_window.strides[axis]
            count = -(-(padded - reach) // stride) + 1
            # An output pixel whose kernel window starts in the padding at the end is dropped.
            if (count - 1) * stride >= image[1 + axis] + pads[axis]:
                count -= 1
            pads[2 + axis] += max(0, (count - 1) * stride + reach - padded)
        return tuple(pads)


class Int8Pools:
    """XNNPACK's int8 max pooling; the operator is created anew if pads change.

    Args:
        kernel_window: kernel size, pads, strides and dilations.
    """

    def __init__(self, kernel_window: KernelWindow) -> None:
        self._kernel_window = kernel_window
        self._last: tuple[tuple[int, ...], movement.XnnMaxPool] | None = None

    def of(self, pads: tuple[int, ...]) -> movement.XnnMaxPool:
        """Return the operator for these pads."""
        if self._last is None or self._last[0] != pads:
            kernel_window = self._kernel_window
            operator = movement.XnnMaxPool(
                kernel_window.size, pads, kernel_window.strides, kernel_window.dilations
            )
            self._last = pads, operator
        return self._last[1]


@record
class PadImage(Computation):
    """Zero padding of images, for averages that include the padding.

    Attributes:
        pads: top, left, bottom, right.
    """

    mnemonic = "pad_image"
    kernel = "xnn pad"
    pads: tuple[int, int, int, int]

    def pack(self, op: LoweredOp, session: Session | None) -> movement.XnnPad:
        """See `Computation.pack`."""
        return movement.XnnPad(0.0)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
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


def _kernel_window(op: Op, facts: Facts) -> KernelWindow:
    dims = facts.dims(op.input(0))
    return KernelWindow.of(op, op.get("kernel_shape", ()), None if dims is None else dims[2:])


def _check_pool(op: Op, facts: Facts) -> str | None:
    maximum = op.kind == "MaxPool"
    reason = check_float_or_int8(op, facts) if maximum else check_floats(op, facts)
    if reason:
        return reason
    if facts.rank(op.input(0)) not in CHANNELS_LAST:
        return f"pooling of inputs of rank {facts.rank(op.input(0))} has no kernel"
    if len(op.outputs) > 1 and (op.outputs[1].uses() or op.outputs[1].name in facts.needed):
        return "the indices of the maxima are used"
    try:
        kernel_window = _kernel_window(op, facts)
    except AttributesError as error:
        return str(error)
    ceil = bool(op.get("ceil_mode", 0))
    if ceil and op.get("auto_pad", "NOTSET") != "NOTSET":
        return "ceil_mode with auto_pad is not covered"
    for axis in (0, 1):
        if max(kernel_window.pads[axis], kernel_window.pads[2 + axis]) >= (
            (kernel_window.size[axis] - 1) * kernel_window.dilations[axis] + 1
        ):
            return "kernel windows may lie in the padding altogether"
    if maximum:
        return None
    if kernel_window.dilations != (1, 1):
        return "average pooling with dilations has no kernel"
    if op.get("count_include_pad", 0) and ceil:
        return "averages that count the padding, with ceil_mode, have no kernel"
    return None


def _max_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    kernel_window = _kernel_window(op, builder.facts)
    ceil = bool(op.get("ceil_mode", 0))
    pool = Pool(kernel_window, maximum=True, ceil=ceil)
    builder.compute(pool, [builder.slot_of(given, perm)], op.output, perm)


def _average_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    kernel_window = _kernel_window(op, builder.facts)
    slot = builder.slot_of(given, perm)
    if op.get("count_include_pad", 0) and any(kernel_window.pads):
        slot = builder.intermediate(PadImage(kernel_window.pads), [slot], given)
        kernel_window = KernelWindow(
            kernel_window.size, (0, 0, 0, 0), kernel_window.strides, kernel_window.dilations
        )
    pool = Pool(kernel_window, maximum=False, ceil=bool(op.get("ceil_mode", 0)))
    builder.compute(pool, [slot], op.output, perm)


def _check_global(op: Op, facts: Facts) -> str | None:
    int8_types = (ir.DataType.INT8,) if op.kind == "GlobalMaxPool" else ()
    reason = check_dtype(op.required(0), facts, ir.DataType.FLOAT, *int8_types)
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
    builder.compute(reduce, [builder.slot_of(given, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("MaxPool", lower=_max_pool, check=_check_pool),
    *rules("AveragePool", lower=_average_pool, check=_check_pool),
    *rules("GlobalAveragePool", "GlobalMaxPool", lower=_global_pool, check=_check_global),
)
