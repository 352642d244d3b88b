"""Normalizations of channels, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise import common_layout
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import Elementwise, Pairwise
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import Softmax
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements


def _check_batch_norm(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts, 5)
    if reason:
        return reason
    if not all(facts.is_constant(op.input(index)) for index in range(1, 5)):
        return "its parameters are not constant"
    if len(op.outputs) > 1 or op.get("training_mode", 0) or not op.get("spatial", 1):
        return "it is in training mode"
    if op.version < 7 and not op.get("is_test", 0):
        return "it is in training mode"
    return None if facts.rank(op.input(0)) != 0 else "its input has no channels"


@lowers("BatchNormalization", check=_check_batch_norm, clamps=True)
def _batch_norm(op: Op, builder: Builder) -> None:
    scale, bias, mean, variance = (
        np.asarray(builder.facts.constant(op.required(index)), np.float64) for index in range(1, 5)
    )
    factor = scale / np.sqrt(variance + op.get("epsilon", 1e-5))
    shift = bias - mean * factor
    given, output = op.required(0), op.output
    rank = builder.rank(given)
    perm = common_layout(builder, [given], rank)
    dims = [1] * rank
    dims[perm.index(min(1, rank - 1))] = factor.size
    factors = builder.constant_slot("scale", factor.astype(np.float32).reshape(dims))
    shifts = builder.constant_slot("shift", shift.astype(np.float32).reshape(dims))
    slot = builder.at(given, perm)
    slot = builder.emit(Pairwise(slot, factors, builder.scratch(output), "multiply"))
    slot = builder.emit(Pairwise(slot, shifts, builder.scratch(output), "add"))
    if op.clamped:
        slot = builder.emit(Elementwise(slot, builder.scratch(output), "clamp", op.limits))
    builder.alias(output, slot, perm)


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
