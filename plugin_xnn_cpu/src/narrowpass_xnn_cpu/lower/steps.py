"""Steps that several families use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.meter import NativeMeter
from narrowpass_xnn_cpu.native.operators import Binary, Transpose, Unary
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements


class Elementwise(Step):
    """An elementwise operator of XNNPACK with one operand."""

    in_place: Sequence[int] = (0,)

    def __init__(self, given: Slot, output: Slot, kind: str, parameters: Sequence[float] = ()):
        super().__init__([given], output)
        self.kernel = f"xnn {kind}"
        self._operator = Unary(kind, parameters)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        self._operator.reshape(elements(shape), sizing.pool)
        return Run(shape, self._operator.call, self._operator)


class Pairwise(Step):
    """An elementwise operator of XNNPACK with two operands, which broadcast."""

    in_place: Sequence[int] = (0, 1)

    def __init__(self, first: Slot, second: Slot, output: Slot, kind: str) -> None:
        super().__init__([first, second], output)
        self.kernel = f"xnn {kind}"
        self._operator = Binary(kind)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        first, second = shapes
        shape = broadcast(first, second)
        if not elements(shape):
            return Run(shape)
        self._operator.reshape(first, second, sizing.pool)
        return Run(shape, self._operator.call, self._operator)


TURNED = bytes(byte ^ 0x80 for byte in range(256))
"""The table between int8 and uint8 that stand for the same numbers."""


class Table(Step):
    """A function of bytes.

    Args:
        given: int8, or uint8.
        output: one of these, too.
        entries: what each byte becomes, the byte taken as a number from 0 to 255.
    """

    kernel = "table"
    in_place: Sequence[int] = (0,)

    def __init__(self, given: Slot, output: Slot, entries: bytes) -> None:
        super().__init__([given], output)
        self._entries = entries

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_TABLE", params=kernels.table(elements(shape), self._entries))


class Converted(Step):
    """A conversion between float32 and a narrower float, to nearest even; or of int8 and uint8."""

    def __init__(self, given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self.kernel = f"convert {given.dtype.name} to {output.dtype.name}"

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        if self.output.dtype.itemsize == 1:
            return Run(shape, "NP_TABLE", params=kernels.table(elements(shape), TURNED))
        names = self.inputs[0].dtype.name, self.output.dtype.name
        return Run(shape, "NP_CONVERT", params=kernels.convert(elements(shape), *names))


class Rounded(Step):
    """float32 rounded to what a narrower float has of it: to nearest even, or to infinity."""

    in_place: Sequence[int] = (0,)

    def __init__(self, given: Slot, output: Slot, narrow: np.dtype[Any]) -> None:
        super().__init__([given], output)
        self.kernel = f"round to {narrow.name}"
        self._narrow = narrow.name

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_CONVERT", params=kernels.rounding(elements(shape), self._narrow))


class Observed(Step):
    """A look at what a slot holds, in whatever order that lies.

    Args:
        given: what is looked at.
        value: the name of the value that it holds; others may lie there too.

    Attributes:
        value: the name.
        meter: what takes it in.
    """

    kernel = "observe"

    def __init__(self, given: Slot, value: str) -> None:
        super().__init__([given], Slot(value, given.dtype))
        self.value = value
        self.meter = NativeMeter()

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`; the output has no elements."""
        if not elements(shapes[0]):
            return Run((0,))
        return Run((0,), "NP_OBSERVE", params=self.meter.params(elements(shapes[0])))


class Reshaped(Step):
    """The same elements in the same order, with other dimensions: never a copy.

    Args:
        given: what is looked at.
        output: the other view of it.
        shape: gives the dimensions from those of `given`.
    """

    kernel = "view"

    def __init__(self, given: Slot, output: Slot, shape: Callable[[Shape], Shape]) -> None:
        super().__init__([given], output)
        self._shape = shape

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        result = self._shape(shapes[0])
        if elements(result) != elements(shapes[0]):
            raise BackendError(f"{list(shapes[0])} has not as many elements as {list(result)}")
        return Run(result, view=0)


class Permute(Step):
    """A change of the order of axes; free where only axes of size 1 change places."""

    def __init__(self, given: Slot, output: Slot, perm: Sequence[int]) -> None:
        super().__init__([given], output)
        self.kernel = "transpose"
        self._perm = tuple(perm)
        self._operator = (
            Transpose(output.dtype.itemsize) if output.dtype.itemsize in (1, 4) else None
        )

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        result = tuple(shape[axis] for axis in self._perm)
        if not elements(shape):
            return Run(result)
        moved = [axis for axis in self._perm if shape[axis] != 1]
        if moved == sorted(moved):
            return Run(result, view=0)
        planes = _planes(shape, self._perm)
        size = self.output.dtype.itemsize
        if planes is not None and size in (1, 4):
            return Run(result, "NP_NCHW_TO_NHWC", params=kernels.interleave(*planes, size))
        if self._operator is not None and len(shape) <= 6:
            self._operator.reshape(shape, self._perm, sizing.pool)
            return Run(result, self._operator.call, self._operator)
        strides = kernels.dense_strides(shape)
        params = kernels.copy(
            result,
            [strides[axis] for axis in self._perm],
            kernels.dense_strides(result),
            self.output.dtype.itemsize,
        )
        return Run(result, "NP_COPY", params=params)


def _planes(shape: Shape, perm: Sequence[int]) -> tuple[int, int, int] | None:
    """Give images, channels and pixels, where few planes are to become pixels."""
    rank = len(shape)
    if rank < 3 or tuple(perm) != (0, *range(2, rank), 1) or not 2 <= shape[1] <= 4:
        return None
    return shape[0], shape[1], elements(shape[2:])


def broadcast(*shapes: Shape) -> Shape:
    """Give the shape that shapes broadcast to.

    Raises:
        BackendError: they do not broadcast together.
    """
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            texts = " and ".join(str(list(shape)) for shape in shapes)
            raise BackendError(f"shapes {texts} do not broadcast together")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def is_bounded(limits: tuple[float, float]) -> bool:
    """Tell whether there is anything to clamp."""
    return limits != (-math.inf, math.inf)
