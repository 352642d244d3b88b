"""Steps of any element type: two operands that broadcast, one operand, conversions, functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_xnn_cpu.lower.builder import Builder, Perm, identity, storage_dtype
from narrowpass_xnn_cpu.lower.facts import NARROW, Facts
from narrowpass_xnn_cpu.lower.layout import common_layout, operand
from narrowpass_xnn_cpu.lower.op import needs
from narrowpass_xnn_cpu.lower.steps import Converted, Rounded, broadcast
from narrowpass_xnn_cpu.native import elem_kernels, kernels
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

INTEGERS = (
    *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
)
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
NUMBERS = (*INTEGERS, *FLOATS)
"""Beside the narrow floats, which go where float32 does."""
ANY = (*NUMBERS, ir.DataType.BOOL)
TYPED = (*INTEGERS, ir.DataType.DOUBLE)
"""Types of numbers that XNNPACK's operators are not for."""


class TypedBinary(Step):
    """An operator of two operands of one type, which broadcast; one of ``NP_BINARY_*``."""

    in_place: Sequence[int] = (0, 1)

    def __init__(self, first: Slot, second: Slot, output: Slot, name: str) -> None:
        super().__init__([first, second], output)
        self.kernel = f"{name} {first.dtype.name}"
        self._name = name

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape = broadcast(*shapes)
        if not elements(shape):
            return Run(shape)
        strides = [kernels.broadcast_strides(given, shape) for given in shapes]
        dtype = self.inputs[0].dtype.name
        params = elem_kernels.typed_binary(shape, strides, self._name, dtype)
        return Run(shape, "NP_TYPED_BINARY", params=params)


class TypedUnary(Step):
    """An operator of one operand; one of ``NP_UNARY_*``."""

    in_place: Sequence[int] = (0,)

    def __init__(
        self, given: Slot, output: Slot, name: str, *, positive: bool = True, negative: bool = True
    ) -> None:
        super().__init__([given], output)
        self.kernel = f"{name} {given.dtype.name}"
        self._name, self._signs = name, (positive, negative)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        positive, negative = self._signs
        params = elem_kernels.typed_unary(
            elements(shape),
            self._name,
            self.inputs[0].dtype.name,
            positive=positive,
            negative=negative,
        )
        return Run(shape, "NP_TYPED_UNARY", params=params)


class CastStep(Step):
    """A conversion between two of ``NP_TYPE_*``."""

    in_place: Sequence[int] = (0,)

    def __init__(self, given: Slot, output: Slot) -> None:
        super().__init__([given], output)
        self.kernel = f"convert {given.dtype.name} to {output.dtype.name}"

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        names = self.inputs[0].dtype.name, self.output.dtype.name
        return Run(shape, "NP_CAST", params=elem_kernels.cast(elements(shape), *names))


class MathFunction(Step):
    """A function of a float with up to two parameters; one of ``NP_MATH_*``."""

    in_place: Sequence[int] = (0,)

    def __init__(
        self, given: Slot, output: Slot, name: str, parameters: Sequence[float] = ()
    ) -> None:
        super().__init__([given], output)
        self.kernel = name
        self._parameters = parameters

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        params = elem_kernels.math_function(elements(shape), self.kernel, *self._parameters)
        return Run(shape, "NP_MATH", params=params)


def needs_one_type(
    values: Sequence[ir.Value | None], facts: Facts, *dtypes: ir.DataType
) -> str | None:
    """Check that values are tensors of one of `dtypes`, the same one, of known, possible rank."""
    found = [value for value in values if value is not None]
    for value in found:
        reason = needs(value, facts, *dtypes)
        if reason:
            return reason
    names = {facts.dtype(value) for value in found}
    return None if len(names) < 2 else "its operands are of several types"


def layout_of(builder: Builder, values: Sequence[ir.Value]) -> Perm:
    """Choose the order of axes in which operands of any type are taken."""
    rank = max(builder.rank(value) for value in values)
    if any(builder.facts.dtype(value) == ir.DataType.UINT8 for value in values):
        return identity(rank)  # they are taken as they are stored
    return common_layout(builder, values, rank)


def typed_operand(builder: Builder, value: ir.Value, perm: Perm, *, rounded: bool = False) -> Slot:
    """Give an operand in the order `perm`; uint8 as stored, not with an offset as int8.

    Args:
        builder: of the partition.
        value: the operand.
        perm: the order of its axes; ONNX's where it is uint8.
        rounded: whether elements of a narrow float must be such as the type has.
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
    """Give float32 rounded to what a narrow type has of it, unless it surely is such."""
    if builder.is_exact(slot, dtype):
        return slot
    step = Rounded(slot, Slot(f"{value.name} (part)", slot.dtype), np.dtype(dtype.numpy()))
    made = builder.emit(step)
    builder.set_exact(made, dtype)
    return made


def emit_typed(
    builder: Builder, make: Callable[[Slot], Step], output: ir.Value, perm: Perm
) -> None:
    """Add the step that `make` gives for a slot of the type of `output`, which it computes."""
    dtype = storage_dtype(builder.facts, output)
    if dtype != np.uint8:
        builder.emit(make(builder.new(output)), output, perm)
        return
    raw = builder.emit(make(Slot(f"{output.name} (part)", dtype)))
    builder.emit(Converted(raw, builder.new(output)), output, perm)


def fold_pairs(builder: Builder, values: Sequence[ir.Value], output: ir.Value, name: str) -> None:
    """Add an operator of two operands, between the first one and each of the others."""
    perm = layout_of(builder, values)
    slot = typed_operand(builder, values[0], perm)
    for value in values[1:-1]:
        other = typed_operand(builder, value, perm)
        made = Slot(f"{output.name} (part)", slot.dtype)
        slot = builder.emit(TypedBinary(slot, other, made, name))
    if len(values) == 1:
        builder.alias(output, builder.at(values[0], perm), perm)
        return
    last = typed_operand(builder, values[-1], perm)
    emit_typed(builder, lambda made: TypedBinary(slot, last, made, name), output, perm)
