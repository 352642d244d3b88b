"""Sums, differences, products and means of bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv.conv2d import CHANNELS_LAST
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import same_shape
from narrowpass_xnn_cpu.lower.elementwise.reduction import reduced_axes, without
from narrowpass_xnn_cpu.lower.int8.constants import byte_limits
from narrowpass_xnn_cpu.lower.int8.convolution import Conv2dInt8
from narrowpass_xnn_cpu.lower.int8.instead import or_floats
from narrowpass_xnn_cpu.lower.int8.tables import clamping
from narrowpass_xnn_cpu.lower.layout import common_layout, operand
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import DropAxes, Lookup, broadcast
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedOp, Perm
from narrowpass_xnn_cpu.native.problems.quantization import LOW, AddS8, Quantization, UnfitError
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack.elementwise import Binary, check_scales
from narrowpass_xnn_cpu.native.xnnpack.reduction import Reduce, check_mean_scales

_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}


@dataclass(frozen=True)
class BinaryInt8(Computation):
    """A sum, difference or product of two int8 tensors, which broadcast.

    Attributes:
        function: ``add``, ``subtract`` or ``multiply``.
        first: quantization of the first operand.
        second: of the second one.
        result: of the result.
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

    def pack(self, op: LoweredOp, session: Session | None) -> Binary:
        """See `Computation.pack`."""
        return Binary(self.function, (self.first, self.second, self.result))

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        first, second = shapes
        shape = broadcast(first, second)
        if not elements(shape):
            return Run(shape)
        step.packed.reshape(first, second, sizing.pool)
        return Run(shape, step.packed.call, step.packed)


@dataclass(frozen=True)
class MeanInt8(Computation):
    """A mean of int8 over axes that stay as dimensions of 1.

    Attributes:
        axes: of the operand, as it lies.
        given: quantization of the operand.
        result: of the result.
    """

    mnemonic = "mean_int8"
    kernel = "xnn reduce mean int8"
    axes: tuple[int, ...]
    given: Quantization
    result: Quantization

    def pack(self, op: LoweredOp, session: Session | None) -> Reduce:
        """See `Computation.pack`."""
        return Reduce("mean", (self.given, self.result))

    def size(self, step: PackedOp, shapes: Sequence[Shape], sizing: Sizing) -> Run:
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


@or_floats
def _binary(op: Op, builder: Builder) -> None:
    first, second = op.required(0), op.required(1)
    (one, other), made = op.attributes["given"], op.attributes["made"]
    function = _BINARY[op.attributes["operator"]]
    binary = BinaryInt8(function, one, other, made)
    check_scales(function, one, other, made)
    perm = common_layout(builder, [first, second], max(map(builder.rank, (first, second))))
    slots = operand(builder, first, perm), operand(builder, second, perm)
    limits = byte_limits(op.limits, made)
    if function == "add" and _joins(op, builder, slots, perm, AddS8.of(one, other, made, limits)):
        return
    if limits == (-128, 127):
        builder.compute(binary, slots, op.output, perm)
        return
    slot = builder.part(binary, slots, op.output)
    builder.compute(Lookup(clamping(*limits)), [slot], op.output, perm)


def _joins(op: Op, builder: Builder, slots: tuple[Slot, Slot], perm: Perm, added: AddS8) -> bool:
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
        before = builder.maker(slots[index]) if alone else None
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


@or_floats
def _mean(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    (quantization,), made = op.attributes["given"], op.attributes["made"]
    whole = op.attributes["operator"] == "GlobalAveragePool"
    axes = tuple(range(2, rank)) if whole else reduced_axes(op, builder.facts)
    if not axes:
        raise UnfitError("it has no axes to reduce")
    check_mean_scales(quantization, made)
    perm = CHANNELS_LAST.get(rank, builder.layout(given)) if whole else builder.layout(given)
    physical = tuple(sorted(perm.index(axis) for axis in axes))
    slot = builder.at(given, perm)
    mean = MeanInt8(physical, quantization, made)
    if whole or op.get("keepdims", 1):
        builder.compute(mean, [slot], output, perm)
        return
    slot = builder.part(mean, [slot], output)
    builder.compute(DropAxes(physical), [slot], output, without(perm, axes))


RULES: tuple[Rule, ...] = (
    *rules("binary-s8", lower=_binary, check=lambda op, facts: None),
    *rules("mean-s8", lower=_mean, check=lambda op, facts: None),
)
