"""Sums, differences, products and means of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.convolve import CHANNELS_LAST, Convolve
from narrowpass_xnn_cpu.lower.elementwise import same_shape
from narrowpass_xnn_cpu.lower.int8.constants import byte_limits
from narrowpass_xnn_cpu.lower.int8.instead import or_floats
from narrowpass_xnn_cpu.lower.int8.tables import clamping
from narrowpass_xnn_cpu.lower.layout import common_layout, operand
from narrowpass_xnn_cpu.lower.op import Op, lowers
from narrowpass_xnn_cpu.lower.reduction import reduced_axes, without
from narrowpass_xnn_cpu.lower.steps import Reshaped, Table, broadcast
from narrowpass_xnn_cpu.native.operators import BinaryS8, MeanS8, UnfitError
from narrowpass_xnn_cpu.native.operators.int8 import LOW
from narrowpass_xnn_cpu.native.operators.int8_tensors import SumS8

_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


class PairwiseBytes(Step):
    """A sum, difference or product of two tensors of bytes, which broadcast."""

    in_place: Sequence[int] = (0, 1)

    def __init__(self, first: Slot, second: Slot, output: Slot, kind: str, operator: BinaryS8):
        super().__init__([first, second], output)
        self.kernel = f"xnn {kind} int8"
        self._operator = operator

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        first, second = shapes
        shape = broadcast(first, second)
        if not elements(shape):
            return Run(shape)
        self._operator.reshape(first, second, sizing.pool)
        return Run(shape, self._operator.call, self._operator)


class MeanOfBytes(Step):
    """A mean over axes that stay as dimensions of 1."""

    kernel = "xnn reduce mean int8"

    def __init__(self, given: Slot, output: Slot, axes: Sequence[int], operator: MeanS8) -> None:
        super().__init__([given], output)
        self._axes = tuple(axes)
        self._operator = operator

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        result = tuple(1 if axis in self._axes else size for axis, size in enumerate(shape))
        if not elements(result):
            return Run(result)
        if not elements(shape):
            # The mean of nothing is NaN.
            return Run(result, constant=np.full(result, LOW, np.int8))
        self._operator.reshape(shape, self._axes, sizing.pool)
        return Run(result, self._operator.call, self._operator)


@lowers("binary-s8", check=lambda op, facts: None)
@or_floats
def _binary(op: Op, builder: Builder) -> None:
    first, second = op.required(0), op.required(1)
    (one, other), made = op.attributes["given"], op.attributes["made"]
    kind = _BINARY[op.attributes["operator"]]
    operator = BinaryS8(kind, one, other, made)
    perm = common_layout(builder, [first, second], max(map(builder.rank, (first, second))))
    slots = operand(builder, first, perm), operand(builder, second, perm)
    limits = byte_limits(op.limits, made)
    if kind == "add" and _joins(op, builder, slots, perm, SumS8.of(one, other, made, limits)):
        return
    if limits == (-128, 127):
        builder.emit(PairwiseBytes(*slots, builder.new(op.output), kind, operator), op.output, perm)
        return
    slot = builder.emit(PairwiseBytes(*slots, builder.scratch(op.output), kind, operator))
    builder.emit(Table(slot, builder.new(op.output), clamping(*limits)), op.output, perm)


def _joins(op: Op, builder: Builder, slots: tuple[Slot, Slot], perm: Perm, added: SumS8) -> bool:
    """Let a convolution whose result only this sum reads add the other operand, if it can.

    What is computed is the same, in one pass over memory less.
    """
    facts = builder.facts
    if slots[0] is slots[1] or not same_shape(facts, op.required(0), op.required(1)):
        return False
    for index in (1, 0):
        value = op.required(index)
        reader = facts.only_user(value)
        alone = reader is not None and facts.only_user(reader.outputs[0]) in op.nodes
        made = builder.maker(slots[index]) if alone else None
        if not isinstance(made, Convolve) or builder.layout(value) != perm:
            continue
        turned = added if index == 0 else added.turned()
        step = made.plus(slots[1 - index], builder.new(op.output), turned)
        if step is not None:
            builder.replace([made], step, op.output, perm)
            return True
    return False


@lowers("mean-s8", check=lambda op, facts: None)
@or_floats
def _mean(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    (quantization,), made = op.attributes["given"], op.attributes["made"]
    whole = op.attributes["operator"] == "GlobalAveragePool"
    axes = tuple(range(2, rank)) if whole else reduced_axes(op, builder.facts)
    if not axes:
        raise UnfitError("it has no axes to reduce")
    operator = MeanS8(quantization, made)
    perm = CHANNELS_LAST.get(rank, builder.layout(given)) if whole else builder.layout(given)
    physical = tuple(sorted(perm.index(axis) for axis in axes))
    slot = builder.at(given, perm)
    if whole or op.get("keepdims", 1):
        builder.emit(MeanOfBytes(slot, builder.new(output), physical, operator), output, perm)
        return
    slot = builder.emit(MeanOfBytes(slot, builder.scratch(output), physical, operator))

    def drop(shape: Shape) -> Shape:
        return tuple(size for axis, size in enumerate(shape) if axis not in physical)

    builder.emit(Reshaped(slot, builder.new(output), drop), output, without(perm, axes))
