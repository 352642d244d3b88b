"""Pooling over windows and over whole images."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.convolve import CHANNELS_LAST, Window
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs, needs_floats
from narrowpass_xnn_cpu.lower.reduction import Reduced
from narrowpass_xnn_cpu.lower.shape import check_filled
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import MaxPoolS8, Pad
from narrowpass_xnn_cpu.native.operators.base import check_window, checked_pixels, checked_shape


class Pooled(Step):
    """A pooling over windows; pads depend on the sizes, where these are rounded up."""

    def __init__(self, given: Slot, output: Slot, window: Window, *, maximum: bool, ceil: bool):
        super().__init__([given], output)
        of_bytes = output.dtype.itemsize == 1
        self.kernel = "average pooling" if not maximum else "max pooling"
        if of_bytes:
            self.kernel = f"xnn {self.kernel}"
        self._of_bytes = of_bytes
        self._window = window
        self._maximum = maximum
        self._ceil = ceil
        self._operators: dict[tuple[int, ...], MaxPoolS8] = {}

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        image = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
        self._window.check(image)
        # An empty batch has an output too, of a size that only a full one tells.
        full = (max(1, image[0]), *image[1:])
        pads = self._pads(image)
        if self._of_bytes:
            height, width = self._of(pads).reshape(full, sizing.pool)
        else:
            height, width = self._counts(full, pads)
        line: Shape = (image[0], width, image[3])
        result: Shape = (image[0], height, width, image[3]) if len(shape) == 4 else line
        if not image[0]:
            return Run(result)
        if self._of_bytes:
            return Run(result, self._of(pads).call, self._of(pads))
        window = self._window
        moves = window.size, window.strides, window.dilations, pads[:2]
        params = kernels.pool(image, (height, width), *moves, maximum=self._maximum)
        return Run(result, "NP_POOL", params=params)

    def _of(self, pads: tuple[int, ...]) -> MaxPoolS8:
        """Give the operator for these pads."""
        if pads not in self._operators:
            window = self._window
            operator = MaxPoolS8(window.size, pads, window.strides, window.dilations)
            self._operators = {pads: operator}
        return self._operators[pads]

    def _counts(self, image: Shape, pads: tuple[int, ...]) -> tuple[int, int]:
        """Give the height and width of the output."""
        window = self._window
        checked_shape(image, 4)
        checked_pixels(pads, 0, "padding")
        checked_pixels(
            (*window.size, *window.strides, *window.dilations), 1, "window, stride or dilation"
        )
        check_window(image, window.size, pads, window.dilations)
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
        """Give the pads, with what rounding up adds at the end."""
        if not self._ceil:
            return self._window.pads
        window, pads = self._window, list(self._window.pads)
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


class PaddedImage(Step):
    """Zeros around images: for averages that count the padding."""

    kernel = "xnn pad"

    def __init__(self, given: Slot, output: Slot, window: Window) -> None:
        super().__init__([given], output)
        self._window = window
        self._operator = Pad(0.0)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        top, left, bottom, right = self._window.pads
        if len(shape) == 4:
            before, after = [0, top, left, 0], [0, bottom, right, 0]
        else:
            before, after = [0, left, 0], [0, right, 0]
        if not elements(shape[1:-1]):
            raise BackendError(f"an input of shape {list(shape)} has nothing to pool")
        result = tuple(map(sum, zip(before, shape, after, strict=True)))
        if not elements(shape):
            return Run(result)
        self._operator.reshape(shape, before, after, sizing.pool)
        return Run(result, self._operator.call, self._operator)


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


@lowers("MaxPool", check=_check_pool)
def _max_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    window = _window(op, builder.facts)
    ceil = bool(op.get("ceil_mode", 0))
    step = Pooled(builder.at(given, perm), builder.new(op.output), window, maximum=True, ceil=ceil)
    builder.emit(step, op.output, perm)


@lowers("AveragePool", check=_check_pool)
def _average_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = CHANNELS_LAST[builder.rank(given)]
    window = _window(op, builder.facts)
    slot = builder.at(given, perm)
    if op.get("count_include_pad", 0) and any(window.pads):
        slot = builder.emit(PaddedImage(slot, builder.scratch(given), window))
        window = Window(window.size, (0, 0, 0, 0), window.strides, window.dilations)
    ceil = bool(op.get("ceil_mode", 0))
    step = Pooled(slot, builder.new(op.output), window, maximum=False, ceil=ceil)
    builder.emit(step, op.output, perm)


def _check_global(op: Op, facts: Facts) -> str | None:
    bytes_too = (ir.DataType.INT8,) if op.kind == "GlobalMaxPool" else ()
    reason = needs(op.required(0), facts, ir.DataType.FLOAT, *bytes_too)
    if reason:
        return reason
    if facts.rank(op.input(0)) in (None, 0, 1, 2):
        return "its input has no dimensions to pool over"
    return None


@lowers("GlobalAveragePool", "GlobalMaxPool", check=_check_global)
def _global_pool(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    perm = CHANNELS_LAST.get(rank, builder.layout(given))
    axes = tuple(i for i, axis in enumerate(perm) if axis >= 2)
    kind = "mean" if op.kind == "GlobalAveragePool" else "max"
    step = Reduced(builder.at(given, perm), builder.new(op.output), kind, lambda _: axes)
    builder.emit(step, op.output, perm)
