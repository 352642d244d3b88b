"""BatchNormalization and MeanVarianceNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import Function
from narrowpass_xnn_cpu.lower.elementwise.reduction import Reduce
from narrowpass_xnn_cpu.lower.norm.group_norm import images_layout
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary, Unary
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.problems.bounds import Range


def _check_batch_norm(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 5)
    if reason:
        return reason
    if len(op.outputs) > 1 or op.get("training_mode", 0) or not op.get("spatial", 1):
        return "it is in training mode"
    if op.version < 7 and not op.get("is_test", 0):
        return "it is in training mode"
    if any(facts.rank(op.input(index)) != 1 for index in range(1, 5)):
        return "its parameters are not of channels"
    return None if facts.rank(op.input(0)) != 0 else "its input has no channels"


@record
class Affine(Computation):
    """Scale and shift of each channel, with a clipping range.

    Operands are the images, scales and shifts.

    Attributes:
        limits: the clipping range.
        channels_last: whether the channels are the last axis, and not the second one.
    """

    mnemonic = "affine"
    kernel = "batch norm"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    limits: Range
    channels_last: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, *others = shapes
        # A vector is a batch of one channel.
        images = (*shape, 1) if len(shape) == 1 else shape
        channels = images[-1] if self.channels_last else images[1]
        if any(other != (channels,) for other in others):
            raise BackendError(
                f"its parameters are not of the {channels} channels of {list(shape)}"
            )
        if not elements(shape):
            return Run(shape)
        params = kernels.affine(images, self.limits, channels_last=self.channels_last)
        return Run(shape, "NP_AFFINE", params=params)


def _batch_norm(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    perm, channels_last = images_layout(rank, builder.layout(given))
    parameters = [op.input(index) for index in range(1, 5)]
    constant = all(builder.facts.is_constant(value) for value in parameters)
    factors, shifts = (_constant_parameters if constant else _computed_parameters)(op, builder)
    operands = builder.slot_of(given, perm), factors, shifts
    builder.compute(Affine(op.limits, channels_last or rank < 3), operands, output, perm)


def _constant_parameters(op: Op, builder: Builder) -> tuple[Slot, Slot]:
    """Return the folded factor and shift of each channel."""
    scale, bias, mean, variance = (
        np.asarray(builder.facts.constant(op.required(index)), np.float64) for index in range(1, 5)
    )
    factor = scale / np.sqrt(variance + op.get("epsilon", 1e-5))
    shift = bias - mean * factor
    factors = builder.constant_slot("scale", factor.astype(np.float32))
    shifts = builder.constant_slot("shift", shift.astype(np.float32))
    return factors, shifts


def _computed_parameters(op: Op, builder: Builder) -> tuple[Slot, Slot]:
    """Emit the computation of factor and shift of each channel."""
    output = op.output
    scale, bias, mean, variance = (builder.slot_of(op.required(index)) for index in range(1, 5))

    def pair(one: Slot, other: Slot, function: str) -> Slot:
        return builder.intermediate(Binary(function), [one, other], output)

    epsilon = builder.constant_slot("epsilon", np.array(op.get("epsilon", 1e-5), np.float32))
    root = builder.intermediate(Function("sqrt"), [pair(variance, epsilon, "add")], output)
    factor = pair(scale, root, "divide")
    return factor, pair(bias, pair(mean, factor, "multiply"), "subtract")


def _check_mean_variance(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts)
    if reason:
        return reason
    rank = facts.rank(op.input(0)) or 0
    axes = op.get("axes", (0, 2, 3))
    if any(not -rank <= axis < rank for axis in axes) or not axes:
        return f"its axes {list(axes)} are not those of an input of rank {rank}"
    return None


def _mean_variance(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    perm = builder.layout(given)
    axes = sorted({perm.index(axis % len(perm)) for axis in op.get("axes", (0, 2, 3))})
    mean = Reduce("mean", tuple(axes))
    slot = builder.slot_of(given, perm)
    centred = builder.intermediate(
        Binary("subtract"), [slot, builder.intermediate(mean, [slot], output)], output
    )
    square = builder.intermediate(Unary("square"), [centred], output)
    root = builder.intermediate(
        Function("sqrt"), [builder.intermediate(mean, [square], output)], output
    )
    tiny = builder.constant_slot("epsilon", np.array(1e-9, np.float32))
    divisor = builder.intermediate(Binary("add"), [root, tiny], output)
    builder.compute(Binary("divide"), [centred, divisor], output, perm)


RULES: tuple[Rule, ...] = (
    *rules("BatchNormalization", lower=_batch_norm, check=_check_batch_norm, fuses_clamp=True),
    *rules("MeanVarianceNormalization", lower=_mean_variance, check=_check_mean_variance),
)
