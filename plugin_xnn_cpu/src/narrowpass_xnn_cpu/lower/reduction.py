"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder, Perm
from narrowpass_xnn_cpu.lower.elementwise import Function
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs_floats
from narrowpass_xnn_cpu.lower.steps import Reshaped
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import Reduce
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

_KINDS = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_squared",
    "ReduceMax": "max",
    "ReduceMin": "min",
}
_OF_NOTHING = {"mean": np.nan, "sum": 0.0, "sum_squared": 0.0, "max": -np.inf, "min": np.inf}
"""What a reduction of no elements gives."""


class Reduced(Step):
    """A reduction that keeps the axes as dimensions of 1."""

    def __init__(
        self, given: Slot, output: Slot, kind: str, axes: Callable[[Sizing], Sequence[int]]
    ) -> None:
        super().__init__([given], output)
        # XNNPACK's greatest and least lose NaN.
        ours = kind in ("max", "min")
        self.kernel = f"reduce {kind}" if ours else f"xnn reduce {kind}"
        self._kind = kind
        self._axes = axes
        self._operator = None if ours else Reduce(kind)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        axes = tuple(self._axes(sizing))
        result = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        if not elements(result):
            return Run(result)
        if not elements(shape):
            value = np.full(result, _OF_NOTHING[self._kind], np.float32)
            return Run(result, constant=value)
        if all(shape[axis] == 1 for axis in axes) and self._kind != "sum_squared":
            return Run(result, view=0)
        if self._operator is None:
            params = kernels.extremes(shape, axes, least=self._kind == "min")
            return Run(result, "NP_EXTREMES", params=params)
        self._operator.reshape(shape, axes, sizing.pool)
        return Run(result, self._operator.call, self._operator)


def _axes_input(op: Op) -> ir.Value | None:
    since = 13 if op.kind == "ReduceSum" else 18
    return op.input(1) if op.version >= since else None


def _check_reduce(op: Op, facts: Facts) -> str | None:
    reason = needs_floats(op, facts)
    if reason:
        return reason
    axes = _axes_input(op)
    if axes is not None and facts.constant(axes) is None:
        return "its axes are not constant"
    try:
        found = reduced_axes(op, facts)
    except BackendError as error:
        return str(error)
    if not found and op.kind in ("ReduceSumSquare", "ReduceL2"):
        return "it has no axes to reduce"
    return None


def reduced_axes(op: Op, facts: Facts) -> tuple[int, ...]:
    """Give the axes that are reduced, each once.

    Raises:
        BackendError: they are not those of the input, or repeat.
    """
    rank = facts.rank(op.input(0)) or 0
    given = _axes_input(op)
    array = facts.constant(given)
    listed = op.get("axes", None) if array is None else [int(axis) for axis in array.reshape(-1)]
    if not listed:
        return () if op.get("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not -rank <= axis < rank for axis in listed):
        raise BackendError(f"its axes {listed} are not those of an input of rank {rank}")
    axes = tuple(dict.fromkeys(axis % rank for axis in listed))
    if len(axes) != len(listed):
        raise BackendError(f"its axes {listed} repeat")
    return axes


@lowers(*_KINDS, "ReduceL2", check=_check_reduce)
def _reduce(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    perm = builder.layout(given)
    axes = reduced_axes(op, builder.facts)
    slot = builder.at(given, perm)
    if not axes:
        builder.alias(output, slot, perm)
        return
    physical = tuple(sorted(perm.index(axis) for axis in axes))
    kind = _KINDS.get(op.kind, "sum_squared")
    slot = builder.emit(Reduced(slot, builder.scratch(output), kind, lambda _: physical))
    if op.kind == "ReduceL2":
        slot = builder.emit(Function(slot, builder.scratch(output), "sqrt"))
    if op.get("keepdims", 1):
        builder.alias(output, slot, perm)
        return
    left = without(perm, axes)

    def drop(shape: Shape) -> Shape:
        return tuple(size for axis, size in enumerate(shape) if axis not in physical)

    builder.emit(Reshaped(slot, builder.new(output), drop), output, left)


def without(perm: Perm, axes: Sequence[int]) -> Perm:
    """Give the order of the axes that are left when `axes` of the value are dropped."""
    rest = [axis for axis in perm if axis not in axes]
    ranked = sorted(rest)
    return tuple(ranked.index(axis) for axis in rest)
