"""Computations that several operator families share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.runtime.meter import NativeMeter
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import elementwise, movement


@dataclass(frozen=True)
class Unary(Computation):
    """An elementwise operator of XNNPACK with one operand.

    Attributes:
        function: the name in XNNPACK.
        parameters: of the function.
    """

    mnemonic = "unary"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str
    parameters: tuple[float, ...] = ()

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"xnn {self.function}"

    def pack(self, op: LoweredOp, session: Session | None) -> elementwise.XnnUnary:
        """See `Computation.pack`."""
        return elementwise.XnnUnary(self.function, self.parameters)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        step.packed.reshape(elements(shape), sizing.pool)
        return Run(shape, step.packed.call, step.packed)


@dataclass(frozen=True)
class Binary(Computation):
    """An elementwise operator of XNNPACK with two operands, which broadcast.

    Attributes:
        function: the name in XNNPACK.
    """

    mnemonic = "binary"
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)
    function: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"xnn {self.function}"

    def pack(self, op: LoweredOp, session: Session | None) -> elementwise.XnnBinary:
        """See `Computation.pack`."""
        return elementwise.XnnBinary(self.function)

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        first, second = shapes
        shape = broadcast(first, second)
        if not elements(shape):
            return Run(shape)
        step.packed.reshape(first, second, sizing.pool)
        return Run(shape, step.packed.call, step.packed)


OFFSET_128 = bytes(byte ^ 0x80 for byte in range(256))
"""The lookup table that converts int8 to uint8, and back, by an offset of 128."""


@record
class Lookup(Computation):
    """A function of int8 or uint8 by a lookup table.

    Attributes:
        table: 256 entries, indexed by the operand as uint8.
    """

    mnemonic = "lookup"
    kernel = "table"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    table: bytes

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        return Run(shape, "NP_TABLE", params=kernels.lookup_table(elements(shape), self.table))


@record
class Convert(Computation):
    """A conversion between float32 and a narrower float, to nearest even; or of int8 and uint8."""

    mnemonic = "convert"

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"convert {op.operands[0].dtype.name} to {op.output.dtype.name}"

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        source, target = step.op.operands[0].dtype, step.op.output.dtype
        if target.itemsize == 1:
            return Run(shape, "NP_TABLE", params=kernels.lookup_table(elements(shape), OFFSET_128))
        params = kernels.convert(elements(shape), source.name, target.name)
        return Run(shape, "NP_CONVERT", params=params)


@record
class RoundTo(Computation):
    """float32 rounded to the nearest number of a narrower float, or to infinity.

    Attributes:
        dtype: the narrower float.
    """

    mnemonic = "round"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    dtype: np.dtype[Any]

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"round to {self.dtype.name}"

    def row_axes(self, op: LoweredOp) -> int | None:
        """See `Computation.row_axes`."""
        return 0

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = kernels.round_to(elements(shape), self.dtype.name)
        return Run(shape, "NP_CONVERT", params=params)


@record
class Observe(Computation):
    """Collects the statistics of a value, in any layout.

    Attributes:
        value: the value's name; the slot may hold others too.
    """

    mnemonic = "observe"
    value: str

    def pack(self, op: LoweredOp, session: Session | None) -> NativeMeter:
        """See `Computation.pack`."""
        return NativeMeter()

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`; the output has no elements."""
        if not elements(shapes[0]):
            return Run((0,))
        return Run((0,), "NP_OBSERVE", params=step.packed.params(elements(shapes[0])))


@dataclass(frozen=True)
class Dim:
    """A dimension of a reshaped tensor: the sizes of `axes` and `times` multiplied, over `over`."""

    axes: tuple[int, ...] = ()
    times: int = 1
    over: int = 1

    def of(self, shape: Shape) -> int:
        """Return the dimension for an input shape."""
        return math.prod(shape[axis] for axis in self.axes) * self.times // self.over


def axes_of(*axes: int) -> tuple[Dim, ...]:
    """Return the dimensions of these axes, unchanged."""
    return tuple(Dim((axis,)) for axis in axes)


@record
class Reshape(Computation):
    """A view of the operand with other dimensions.

    Attributes:
        dims: of the result.
    """

    mnemonic = "reshape"
    kernel = "view"
    dims: tuple[Dim, ...]

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        result = tuple([dim.of(shapes[0]) for dim in self.dims])
        if elements(result) != elements(shapes[0]):
            raise BackendError(f"{list(shapes[0])} has not as many elements as {list(result)}")
        return Run(result, view=0)


def add_leading_axes(rank: int, full: int) -> Reshape:
    """Return the view that extends a tensor of `rank` by leading axes of size 1 to `full` axes."""
    return Reshape((*(Dim(),) * (full - rank), *axes_of(*range(rank))))


@record
class DropAxes(Computation):
    """A view of the operand without some axes of size 1.

    Attributes:
        axes: in the layout of the operand.
    """

    mnemonic = "drop_axes"
    kernel = "view"
    axes: tuple[int, ...]

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if any(shape[axis] != 1 for axis in self.axes):
            raise BackendError(f"axes of {list(shape)} to be dropped are not of size 1")
        return Run(tuple(s for axis, s in enumerate(shape) if axis not in self.axes), view=0)


@dataclass(frozen=True)
class Transpose(Computation):
    """A transpose; a view if only axes of size 1 change places.

    Attributes:
        perm: axis i of the result is axis ``perm[i]`` of the operand.
    """

    mnemonic = "transpose"
    perm: tuple[int, ...]

    def pack(self, op: LoweredOp, session: Session | None) -> movement.XnnTranspose | None:
        """See `Computation.pack`."""
        itemsize = op.output.dtype.itemsize
        return movement.XnnTranspose(itemsize) if itemsize in (1, 4) else None

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        result = tuple(shape[axis] for axis in self.perm)
        if not elements(shape):
            return Run(result)
        moved = [axis for axis in self.perm if shape[axis] != 1]
        if moved == sorted(moved):
            return Run(result, view=0)
        planes = _interleaved_planes(shape, self.perm)
        itemsize = step.op.output.dtype.itemsize
        if planes is not None and itemsize in (1, 4):
            return Run(result, "NP_NCHW_TO_NHWC", params=kernels.nchw_to_nhwc(*planes, itemsize))
        if step.packed is not None and len(shape) <= 6:
            step.packed.reshape(shape, self.perm, sizing.pool)
            return Run(result, step.packed.call, step.packed)
        strides = kernels.dense_strides(shape)
        params = kernels.copy(
            result,
            [strides[axis] for axis in self.perm],
            kernels.dense_strides(result),
            itemsize,
        )
        return Run(result, "NP_COPY", params=params)


def _interleaved_planes(shape: Shape, perm: Sequence[int]) -> tuple[int, int, int] | None:
    """Return images, channels and pixels of an NCHW to NHWC transpose with 2 to 4 channels."""
    rank = len(shape)
    if rank < 3 or tuple(perm) != (0, *range(2, rank), 1) or not 2 <= shape[1] <= 4:
        return None
    return shape[0], shape[1], elements(shape[2:])


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to.

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
