"""Reductions over axes, ArgMax, ArgMin and CumSum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import Function
from narrowpass_xnn_cpu.lower.elementwise.typed import check_same_dtype, layout_of, typed_operand
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import (
    Binary,
    Convert,
    DropAxes,
    Unary,
)
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import calls, kernels

_KINDS = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_squared",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceL1": "l1",
}
_COMPOSED = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
"""Reductions of floats that are composed of several computations."""

_TYPED_NAMES = {"sum_squared": "sum squares"}
"""Names of ``NP_REDUCTION_*`` that differ from those of int8 reductions."""

_EMPTY_RESULTS = {
    "mean": np.nan,
    "sum": 0.0,
    "sum_squared": 0.0,
    "l1": 0.0,
    "prod": 1.0,
    "max": -np.inf,
    "min": np.inf,
}
"""The result of a reduction of no elements."""

_REDUCED = (
    *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64),
    *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.BOOL),
)


_LARGEST = float(np.finfo(np.float32).max)


def _empty_result(kind: str, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f" or kind not in ("max", "min"):
        return _EMPTY_RESULTS[kind] if kind != "mean" or dtype.kind == "f" else 0
    if dtype.kind == "b":
        return kind == "min"
    limits = np.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


@dataclass(frozen=True)
class Reduce(Computation):
    """A reduction that keeps reduced axes with size 1.

    Attributes:
        function: one of the names of `_KINDS`.
        axes: reduced axes in the layout of the operand.
    """

    mnemonic = "reduce"
    function: str
    axes: tuple[int, ...]

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return f"reduce {self.function}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        axes, function = self.axes, self.function
        result = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        if not elements(result):
            return Run(result)
        if not elements(shape):
            dtype = step.op.output.dtype
            return Run(result, constant=np.full(result, _empty_result(function, dtype), dtype))
        changes = function in ("sum_squared", "l1")
        if all(shape[axis] == 1 for axis in axes) and not changes:
            return Run(result, view=0)
        name, dtype = _TYPED_NAMES.get(function, function), step.op.operands[0].dtype
        params = kernels.typed_reduction(shape, axes, name, dtype.name)
        return Run(result, "NP_TYPED_REDUCTION", params=params)


def _axes_input(op: Op) -> ir.Value | None:
    since = 13 if op.kind == "ReduceSum" else 18
    return op.input(1) if op.version >= since else None


def _check_reduce(op: Op, facts: Facts) -> str | None:
    reason = check_same_dtype([op.required(0)], facts, *_REDUCED)
    if reason:
        return reason
    if op.kind in _COMPOSED and (reason := check_floats(op, facts)):
        return reason
    if facts.dtype(op.input(0)) == ir.DataType.BOOL and op.kind not in ("ReduceMax", "ReduceMin"):
        return "it is of conditions"
    axes = _axes_input(op)
    if axes is not None and facts.constant(axes) is None:
        return "its axes are not constant"
    try:
        found = reduced_axes(op, facts)
    except AttributesError as error:
        return str(error)
    if not found and op.kind in ("ReduceSumSquare", "ReduceL1", *_COMPOSED):
        return "it has no axes to reduce"
    return None


def reduced_axes(op: Op, facts: Facts) -> tuple[int, ...]:
    """Return the reduced axes, from 0 on.

    Raises:
        AttributesError: axes are out of range or repeat.
    """
    rank = facts.rank(op.input(0)) or 0
    given = _axes_input(op)
    array = facts.constant(given)
    listed = op.get("axes", None) if array is None else [int(axis) for axis in array.reshape(-1)]
    if not listed:
        return () if op.get("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not -rank <= axis < rank for axis in listed):
        raise AttributesError(f"its axes {listed} are not those of an input of rank {rank}")
    axes = tuple(dict.fromkeys(axis % rank for axis in listed))
    if len(axes) != len(listed):
        raise AttributesError(f"its axes {listed} repeat")
    return axes


def _reduce(op: Op, builder: Builder) -> None:
    given, output = op.required(0), op.output
    perm = layout_of(builder, [given])
    axes = reduced_axes(op, builder.facts)
    if not axes:
        builder.alias(output, builder.slot_of(given, perm), perm)
        return
    slot = typed_operand(builder, given, perm)
    physical = tuple(sorted(perm.index(axis) for axis in axes))
    slot = _reduced(op, builder, slot, physical)
    if slot.dtype == np.uint8:
        slot = builder.intermediate(Convert(), [slot], output)
    if op.get("keepdims", 1):
        builder.alias(output, slot, perm)
        return
    builder.compute(DropAxes(physical), [slot], output, drop_axes_of(perm, axes))


def _reduced(op: Op, builder: Builder, slot: Slot, axes: tuple[int, ...]) -> Slot:
    """Emit a reduction along axes of a slot, which are kept with size 1."""

    def part(computation: Computation, *operands: Slot) -> Slot:
        return builder.emit(computation, operands, Slot(f"{op.output.name} (part)", slot.dtype))

    def along(given: Slot, function: str) -> Slot:
        return part(Reduce(function, axes), given)

    if op.kind == "ReduceL2":
        return part(Function("sqrt"), along(slot, "sum_squared"))
    if op.kind == "ReduceLogSum":
        return part(Function("log"), along(slot, "sum"))
    if op.kind != "ReduceLogSumExp":
        return along(slot, _KINDS[op.kind])
    # inf - inf would be NaN; inf - FLT_MAX is still inf.
    most = part(Unary("clamp", (-_LARGEST, _LARGEST)), along(slot, "max"))
    powers = part(Function("exp"), part(Binary("subtract"), slot, most))
    return part(Binary("add"), part(Function("log"), along(powers, "sum")), most)


def drop_axes_of(perm: Perm, axes: Sequence[int]) -> Perm:
    """Return the layout after `axes` of the value are dropped."""
    rest = [axis for axis in perm if axis not in axes]
    ranked = sorted(rest)
    return tuple(ranked.index(axis) for axis in rest)


def _sizes_around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return the elements of the axes before `axis`, of it, and of those after it."""
    return elements(shape[:axis]), shape[axis], elements(shape[axis + 1 :])


def _check_axis(axis: int, rank: int) -> str | None:
    if -rank <= axis < rank:
        return None
    return f"axis {axis} is not one of an input of rank {rank}"


@record
class ArgExtreme(Computation):
    """ArgMax or ArgMin along an axis, which is kept with size 1.

    The operand is float32, the result int64.

    Attributes:
        axis: in the layout of the operand.
        least: the least elements, otherwise the greatest; NaN is more extreme than any number.
        last: of equal elements the last one, otherwise the first.
    """

    mnemonic = "arg_extreme"
    kernel = "arg extreme"
    axis: int
    least: bool
    last: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        result = (*shape[: self.axis], 1, *shape[self.axis + 1 :])
        if not elements(result):
            return Run(result)
        if not shape[self.axis]:
            raise BackendError(f"axis {self.axis} of {list(shape)} has no elements to compare")
        fields = *_sizes_around(shape, self.axis), self.least, self.last
        return Run(result, "NP_ARG_EXTREME", params=calls.parameters("NP_ARG_EXTREME", fields))


def _check_arg_extreme(op: Op, facts: Facts) -> str | None:
    axis, rank = op.get("axis", 0), facts.rank(op.input(0)) or 0
    return _check_axis(axis, rank) or check_floats(op, facts)


def _arg_extreme(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = layout_of(builder, [given])
    axis = op.get("axis", 0) % builder.rank(given)
    at = perm.index(axis)
    computation = ArgExtreme(at, op.kind == "ArgMin", bool(op.get("select_last_index", 0)))
    indices = Slot(f"{op.output.name} (part)", np.dtype(np.int64))
    slot = builder.emit(computation, [builder.slot_of(given, perm)], indices)
    if op.get("keepdims", 1):
        builder.alias(op.output, slot, perm)
    else:
        builder.compute(DropAxes((at,)), [slot], op.output, drop_axes_of(perm, [axis]))


_CUMULATIVE = (ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64)


@record
class CumulativeSum(Computation):
    """Prefix sum along an axis.

    Operand and result are float32, int32 or int64.

    Attributes:
        axis: in the layout of the operand.
        exclusive: whether an element is left out of its own sum.
        reverse: whether elements are added from the last one to the first.
    """

    mnemonic = "cumulative_sum"
    kernel = "cumulative sum"
    axis: int
    exclusive: bool
    reverse: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        dtype = calls.constant("NP_CUMULATIVE_SUM", step.op.operands[0].dtype.name)
        fields = *_sizes_around(shape, self.axis), self.exclusive, self.reverse, dtype
        params = calls.parameters("NP_CUMULATIVE_SUM", fields)
        return Run(shape, "NP_CUMULATIVE_SUM", params=params)


def _check_cumulative_sum(op: Op, facts: Facts) -> str | None:
    axis, rank = facts.constant(op.input(1)), facts.rank(op.input(0)) or 0
    if axis is None or axis.size != 1:
        return "its axis is not constant"
    return _check_axis(axis.item(), rank) or check_same_dtype([op.required(0)], facts, *_CUMULATIVE)


def _cumulative_sum(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = layout_of(builder, [given])
    axis = int(builder.facts.array(op.required(1)).item()) % builder.rank(given)
    exclusive, reverse = bool(op.get("exclusive", 0)), bool(op.get("reverse", 0))
    computation = CumulativeSum(perm.index(axis), exclusive, reverse)
    builder.compute(computation, [builder.slot_of(given, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules(*_KINDS, *_COMPOSED, lower=_reduce, check=_check_reduce),
    *rules("ArgMax", "ArgMin", lower=_arg_extreme, check=_check_arg_extreme),
    *rules("CumSum", lower=_cumulative_sum, check=_check_cumulative_sum),
)
