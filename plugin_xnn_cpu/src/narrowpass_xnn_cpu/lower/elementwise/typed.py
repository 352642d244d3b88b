"""Elementwise computations of any dtype: binary, unary, cast and mathematical functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity, storage_dtype
from narrowpass_xnn_cpu.lower.layout import common_layout, operand
from narrowpass_xnn_cpu.lower.op import check_dtype
from narrowpass_xnn_cpu.lower.steps import Convert, RoundTo, broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import elem_kernels, kernels

INTEGERS = (
    *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
)
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
NUMBERS = (*INTEGERS, *FLOATS)
"""Numeric dtypes. Narrow floats are accepted wherever float32 is."""
ANY = (*NUMBERS, ir.DataType.BOOL)
TYPED = (*INTEGERS, ir.DataType.DOUBLE)
"""Numeric dtypes that XNNPACK does not support."""


@record
class TypedBinary(Computation):
    """A binary operator of two operands of equal dtype, which broadcast.

    Attributes:
        function: one of ``NP_BINARY_*``.
    """

    mnemonic = "typed_binary"
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)
    function: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{self.function} {op.operands[0].dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape = broadcast(*shapes)
        if not elements(shape):
            return Run(shape)
        strides = [kernels.broadcast_strides(given, shape) for given in shapes]
        dtype = step.op.operands[0].dtype.name
        params = elem_kernels.typed_binary(shape, strides, self.function, dtype)
        return Run(shape, "NP_TYPED_BINARY", params=params)


@record
class TypedUnary(Computation):
    """A unary operator of any dtype.

    Attributes:
        function: one of ``NP_UNARY_*``.
        positive: whether ``isinf`` detects positive infinity.
        negative: whether it detects negative infinity.
    """

    mnemonic = "typed_unary"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str
    positive: bool = True
    negative: bool = True

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"{self.function} {op.operands[0].dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = elem_kernels.typed_unary(
            elements(shape),
            self.function,
            step.op.operands[0].dtype.name,
            positive=self.positive,
            negative=self.negative,
        )
        return Run(shape, "NP_TYPED_UNARY", params=params)


@record
class Cast(Computation):
    """A conversion between two dtypes of ``NP_TYPE_*``."""

    mnemonic = "cast"
    overwrites: ClassVar[tuple[int, ...]] = (0,)

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"convert {op.operands[0].dtype.name} to {op.output.dtype.name}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        names = step.op.operands[0].dtype.name, step.op.output.dtype.name
        return Run(shape, "NP_CAST", params=elem_kernels.cast(elements(shape), *names))


@record
class MathFunction(Computation):
    """A function of a float with up to two parameters.

    Attributes:
        function: one of ``NP_FUNCTION_*``.
        parameters: of the function.
    """

    mnemonic = "math"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    function: str
    parameters: tuple[float, ...] = ()

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return self.function

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = kernels.function(elements(shape), self.function, *self.parameters)
        return Run(shape, "NP_FUNCTION", params=params)


def check_same_dtype(
    values: Sequence[ir.Value | None], facts: Facts, *dtypes: ir.DataType
) -> str | None:
    """Check that values have equal dtypes, one of `dtypes`, and known, supported ranks."""
    found = [value for value in values if value is not None]
    for value in found:
        reason = check_dtype(value, facts, *dtypes)
        if reason:
            return reason
    names = {facts.dtype(value) for value in found}
    return None if len(names) < 2 else "its operands are of several types"


def layout_of(builder: Builder, values: Sequence[ir.Value]) -> Perm:
    """Choose the layout for operands of any dtype; uint8 has that of ONNX."""
    rank = max(builder.rank(value) for value in values)
    if any(builder.facts.dtype(value) == ir.DataType.UINT8 for value in values):
        return identity(rank)  # uint8 is read as it is stored in the model
    return common_layout(builder, values, rank)


def typed_operand(builder: Builder, value: ir.Value, perm: Perm, *, rounded: bool = False) -> Slot:
    """Return the slot of an operand in the layout `perm`; uint8 as in the model, not as int8.

    Args:
        builder: of the partition.
        value: the operand.
        perm: its layout; ignored for uint8.
        rounded: whether elements of a narrow float must be rounded to its dtype.
    """
    facts = builder.facts
    dtype = facts.dtype(value)
    if dtype == ir.DataType.UINT8:
        if facts.is_constant(value):
            return builder.constant_slot(value.name or "", facts.array(value))
        return builder.stored(value)
    slot = operand(builder, value, perm)
    if rounded and dtype in NARROW and not facts.is_constant(value):
        slot = round_to(builder, slot, dtype, value)
    return slot


def round_to(builder: Builder, slot: Slot, dtype: ir.DataType, value: ir.Value) -> Slot:
    """Return a float32 slot rounded to a narrow dtype; itself if it is known to be exact."""
    if builder.is_exact(slot, dtype):
        return slot
    rounded = Slot(f"{value.name} (part)", slot.dtype)
    builder.emit(RoundTo(np.dtype(dtype.numpy())), [slot], rounded)
    builder.set_exact(rounded, dtype)
    return rounded


def emit_typed(
    builder: Builder,
    computation: Computation,
    operands: Sequence[Slot],
    output: ir.Value,
    perm: Perm,
) -> None:
    """Emit a computation whose result is `output` in its dtype in the model."""
    dtype = storage_dtype(builder.facts, output)
    if dtype != np.uint8:
        builder.compute(computation, operands, output, perm)
        return
    raw = builder.emit(computation, operands, Slot(f"{output.name} (part)", dtype))
    builder.compute(Convert(), [raw], output, perm)


def fold_pairs(
    builder: Builder, values: Sequence[ir.Value], output: ir.Value, function: str
) -> None:
    """Emit a left fold of a binary operator over several operands."""
    perm = layout_of(builder, values)
    if len(values) == 1:
        builder.alias(output, builder.slot_of(values[0], perm), perm)
        return
    operator = TypedBinary(function)
    slot = typed_operand(builder, values[0], perm)
    for value in values[1:-1]:
        other = typed_operand(builder, value, perm)
        slot = builder.emit(operator, [slot, other], Slot(f"{output.name} (part)", slot.dtype))
    last = typed_operand(builder, values[-1], perm)
    emit_typed(builder, operator, [slot, last], output, perm)
