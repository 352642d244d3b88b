"""Normalizations of channels, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise import Function
from narrowpass_xnn_cpu.lower.group_norm import images_layout
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.reduction import Reduced
from narrowpass_xnn_cpu.lower.steps import Elementwise, Pairwise
from narrowpass_xnn_cpu.native import elem_kernels, kernels
from narrowpass_xnn_cpu.native.operators import Range, Softmax


def _check_batch_norm(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 5)
    if reason:
        return reason
    if len(op.outputs) > 1 or op.get("training_mode", 0) or not op.get("spatial", 1):
        return "it is in training mode"
    if op.version < 7 and not op.get("is_test", 0):
        return "it is in training mode"
    if any(facts.rank(op.input(index)) != 1 for index in range(1, 5)):
        return "its parameters are not of channels"
    return None if facts.rank(op.input(0)) != 0 else "its input has no channels"


class Affine(Step):
    """A scale and a shift for each channel, and bounds.

    Args:
        slots: what is scaled, scales and shifts.
        output: the result.
        limits: what it is clamped to.
        channels_last: whether the channels are the last axis, and not the second one.
    """

    kernel = "batch norm"
    in_place: Sequence[int] = (0,)

    def __init__(
        self, slots: Sequence[Slot], output: Slot, limits: Range, *, channels_last: bool
    ) -> None:
        super().__init__(slots, output)
        self._limits, self._channels_last = limits, channels_last

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        shape, *others = shapes
        channels = shape[-1] if self._channels_last else shape[1]
        if any(other != (channels,) for other in others):
            raise BackendError(
                f"its parameters are not of the {channels} channels of {list(shape)}"
            )
        if not elements(shape):
            return Run(shape)
        images = (1, *shape) if len(shape) == 1 else shape
        last = self._channels_last
        params = elem_kernels.affine(images, self._limits, channels_last=last)
        return Run(shape, "NP_AFFINE", params=params)


@lowers("BatchNormalization", check=_check_batch_norm, clamps=True)
def _batch_norm(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    perm, channels_last = images_layout(rank, builder.layout(given))
    parameters = [op.input(index) for index in range(1, 5)]
    constant = all(builder.facts.is_constant(value) for value in parameters)
    factors, shifts = (_constant_parameters if constant else _computed_parameters)(op, builder)
    slots = builder.at(given, perm), factors, shifts
    step = Affine(slots, builder.new(output), op.limits, channels_last=channels_last or rank < 3)
    builder.emit(step, output, perm)


def _constant_parameters(op: Op, builder: Builder) -> tuple[Slot, Slot]:
    """Give a factor and a shift for each channel."""
    scale, bias, mean, variance = (
        np.asarray(builder.facts.constant(op.required(index)), np.float64) for index in range(1, 5)
    )
    factor = scale / np.sqrt(variance + op.get("epsilon", 1e-5))
    shift = bias - mean * factor
    factors = builder.constant_slot("scale", factor.astype(np.float32))
    shifts = builder.constant_slot("shift", shift.astype(np.float32))
    return factors, shifts


def _computed_parameters(op: Op, builder: Builder) -> tuple[Slot, Slot]:
    """Add what computes a factor and a shift for each channel."""
    output = op.output
    scale, bias, mean, variance = (builder.at(op.required(index)) for index in range(1, 5))

    def pair(one: Slot, other: Slot, kind: str) -> Slot:
        return builder.emit(Pairwise(one, other, builder.scratch(output), kind))

    epsilon = builder.constant_slot("epsilon", np.array(op.get("epsilon", 1e-5), np.float32))
    root = builder.emit(Function(pair(variance, epsilon, "add"), builder.scratch(output), "sqrt"))
    factor = pair(scale, root, "divide")
    return factor, pair(bias, pair(mean, factor, "multiply"), "subtract")


class SoftmaxRows(Step):
    """Softmax over the last axes, taken as one."""

    kernel = "softmax"

    def __init__(self, given: Slot, output: Slot, axes: int) -> None:
        super().__init__([given], output)
        self._axes = axes
        self._operator = Softmax()

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        channels = elements(shape[len(shape) - self._axes :])
        if channels == 2:
            params = kernels.softmax_pairs(elements(shape) // 2)
            return Run(shape, "NP_SOFTMAX_PAIRS", params=params)
        self._operator.reshape(elements(shape) // channels, channels, sizing.pool)
        return Run(shape, self._operator.call, self._operator)


def _check_softmax(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts)
    if reason:
        return reason
    rank = facts.rank(op.input(0)) or 0
    axis = op.get("axis", -1 if op.version >= 13 else 1)
    if not -rank <= axis < rank:
        return f"axis {axis} is not one of an input of rank {rank}"
    return None


@lowers("Softmax", check=_check_softmax)
def _softmax(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    if op.version >= 13:
        axis, axes = op.get("axis", -1) % rank, 1
        perm = builder.layout(given)
        if perm[-1] != axis:
            perm = (*(a for a in perm if a != axis), axis)
    else:
        # Before operator set 13 all axes from `axis` on count as one.
        axes = rank - op.get("axis", 1) % rank
        perm = identity(rank)
    step = SoftmaxRows(builder.at(given, perm), builder.new(op.output), axes)
    builder.emit(step, op.output, perm)


def _check_mean_variance(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts)
    if reason:
        return reason
    rank = facts.rank(op.input(0)) or 0
    axes = op.get("axes", (0, 2, 3))
    if any(not -rank <= axis < rank for axis in axes) or not axes:
        return f"its axes {list(axes)} are not those of an input of rank {rank}"
    return None


@lowers("MeanVarianceNormalization", check=_check_mean_variance)
def _mean_variance(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    perm = builder.layout(given)
    axes = sorted({perm.index(axis % len(perm)) for axis in op.get("axes", (0, 2, 3))})

    def mean(slot: Slot) -> Slot:
        return builder.emit(Reduced(slot, builder.scratch(output), "mean", lambda _: axes))

    def pair(one: Slot, other: Slot, kind: str, made: Slot) -> Slot:
        return builder.emit(Pairwise(one, other, made, kind))

    slot = builder.at(given, perm)
    centred = pair(slot, mean(slot), "subtract", builder.scratch(output))
    square = builder.emit(Elementwise(centred, builder.scratch(output), "square"))
    root = builder.emit(Function(mean(square), builder.scratch(output), "sqrt"))
    tiny = builder.constant_slot("epsilon", np.array(1e-9, np.float32))
    divisor = pair(root, tiny, "add", builder.scratch(output))
    builder.alias(output, pair(centred, divisor, "divide", builder.new(output)), perm)
