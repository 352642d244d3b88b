"""Addition, subtraction, multiplication and mean of int8 tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder, common_layout, operand
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import same_shape
from narrowpass_xnn_cpu.lower.elementwise.reduction import drop_axes_of, reduced_axes
from narrowpass_xnn_cpu.lower.int8.constants import quantized_limits, with_float_fallback
from narrowpass_xnn_cpu.lower.int8.convolution import Conv2dInt8
from narrowpass_xnn_cpu.lower.int8.tables import clamp_table
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import DropAxes, Lookup, broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native.problems.quantization import LOW, AddS8, Quantization, UnfitError
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.elementwise import (
    XnnBinary,
    XnnMean,
    check_mean_scales,
    check_scales,
)

_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


@record
class BinaryInt8(Computation):
    """Addition, subtraction or multiplication of two int8 tensors, which broadcast.

    Attributes:
        function: ``add``, ``subtract`` or ``multiply``.
        first: quantization of the first operand.
        second: quantization of the second operand.
        result: quantization of the result.
    """

    mnemonic = "binary_int8"
    overwrites: ClassVar[tuple[int, ...]] = (0, 1)
    function: str
    first: Quantization
    second: Quantization
    result: Quantization

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"xnn {self.function} int8"

    def pack(self, op: LoweredOp, session: Session | None) -> XnnBinary:
        """See `Computation.pack`."""
        return XnnBinary(self.function, (self.first, self.second, self.result))

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        first, second = shapes
        shape = broadcast(first, second)
        if not elements(shape):
            return Run(shape)
        step.packed.reshape(first, second, sizing.pool)
        return Run(shape, step.packed.call, step.packed)


@record
class MeanInt8(Computation):
    """A mean of int8 over axes that are kept with size 1.

    Attributes:
        axes: reduced axes in the layout of the operand.
        source: quantization of the operand.
        result: quantization of the result.
    """

    mnemonic = "mean_int8"
    kernel = "xnn reduce mean int8"
    axes: tuple[int, ...]
    source: Quantization
    result: Quantization

    def pack(self, op: LoweredOp, session: Session | None) -> XnnMean:
        """See `Computation.pack`."""
        return XnnMean(self.source, self.result)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        result = tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
        if not elements(result):
            return Run(result)
        if not elements(shape):
            # The mean of nothing is NaN.
            return Run(result, constant=np.full(result, LOW, np.int8))
        step.packed.reshape(shape, self.axes, sizing.pool)
        return Run(result, step.packed.call, step.packed)


@with_float_fallback
def _binary(op: Op, builder: Builder) -> None:
    first, second = op.required(0), op.required(1)
    one, other = op.attributes["input_quantizations"]
    target = op.attributes["output_quantization"]
    function = _BINARY[op.attributes["operator"]]
    binary = BinaryInt8(function, one, other, target)
    check_scales(function, one, other, target)
    perm = common_layout(builder, [first, second], max(map(builder.rank, (first, second))))
    slots = operand(builder, first, perm), operand(builder, second, perm)
    limits = quantized_limits(op.limits, target)
    if function == "add":
        added = AddS8.of(one, other, target, limits)
        if _fuse_into_convolution(op, builder, slots, perm, added):
            return
    if limits == (-128, 127):
        builder.compute(binary, slots, op.output, perm)
        return
    slot = builder.intermediate(binary, slots, op.output)
    builder.compute(Lookup(clamp_table(*limits)), [slot], op.output, perm)


def _fuse_into_convolution(
    op: Op, builder: Builder, slots: tuple[Slot, Slot], perm: Perm, added: AddS8
) -> bool:
    """Fuse an Add into the epilogue of a convolution whose result it alone reads, if supported.

    The result is the same, with one pass over memory less.
    """
    facts = builder.facts
    if slots[0] is slots[1] or not same_shape(facts, op.required(0), op.required(1)):
        return False
    for index in (1, 0):
        value = op.required(index)
        reader = facts.only_user(value)
        alone = reader is not None and facts.only_user(reader.outputs[0]) in op.nodes
        before = builder.sole_producer(slots[index]) if alone else None
        convolution = None if before is None else before.computation
        if not isinstance(convolution, Conv2dInt8) or builder.layout(value) != perm:
            continue
        if before is not None and convolution.can_add:
            turned = added if index == 0 else added.swapped()
            fused = dataclasses.replace(convolution, added=turned)
            operands = before.operands[0], slots[1 - index]
            builder.replace([before], fused, operands, op.output, perm)
            return True
    return False


@with_float_fallback
def _mean(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    (source,), target = op.attributes["input_quantizations"], op.attributes["output_quantization"]
    whole = op.attributes["operator"] == "GlobalAveragePool"
    axes = tuple(range(2, rank)) if whole else reduced_axes(op, builder.facts)
    if not axes:
        raise UnfitError("it has no axes to reduce")
    check_mean_scales(source, target)
    perm = CHANNELS_LAST.get(rank, builder.layout(given)) if whole else builder.layout(given)
    physical = tuple(sorted(perm.index(axis) for axis in axes))
    slot = builder.slot_of(given, perm)
    mean = MeanInt8(physical, source, target)
    if whole or op.get("keepdims", 1):
        builder.compute(mean, [slot], output, perm)
        return
    slot = builder.intermediate(mean, [slot], output)
    builder.compute(DropAxes(physical), [slot], output, drop_axes_of(perm, axes))


RULES: tuple[Rule, ...] = (
    *rules("binary-s8", lower=_binary, check=lambda op, facts: None),
    *rules("mean-s8", lower=_mean, check=lambda op, facts: None),
)
