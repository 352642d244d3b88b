"""GatherElements, GatherND, ScatterElements, ScatterND and TopK.

An index out of range is an error at run time, which names the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import NARROW, Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import ANY
from narrowpass_xnn_cpu.lower.norm.layer_norm import LeadingSlice
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import indexing

_INDICES = (ir.DataType.INT64, ir.DataType.INT32)
_ORDERED = (ir.DataType.FLOAT, ir.DataType.DOUBLE, *_INDICES)
"""Dtypes that reductions and TopK support."""


@record
class GatherAt(Computation):
    """GatherElements, or GatherND where there is no axis; operands are data and indices.

    Attributes:
        axis: of GatherElements; None for GatherND.
        batched: number of batch axes of GatherND (``batch_dims``).
    """

    mnemonic = "gather_at"
    axis: int | None
    batched: int = 0

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return "gather tuples" if self.axis is None else "gather elements"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        data, indices = shapes
        dtype, index_size = step.op.output.dtype, step.op.operands[1].dtype.itemsize
        if self.axis is not None:
            params = indexing.gather_elements(data, indices, self.axis, dtype, index_size)
            return Run(indices, "NP_GATHER_ELEMENTS" if elements(indices) else "", params=params)
        params = indexing.gather_nd(data, indices, self.batched, dtype, index_size)
        result = (*indices[:-1], *data[self.batched + indices[-1] :])
        return Run(result, "NP_GATHER_ND" if elements(result) else "", params=params)


@record
class Scatter(Computation):
    """ScatterElements, or ScatterND where there is no axis; operands are data, indices, updates.

    Attributes:
        axis: of ScatterElements; None for ScatterND.
        reduction: one of `indexing.REDUCTIONS`.
    """

    mnemonic = "scatter"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    axis: int | None
    reduction: str

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        how = "" if self.reduction == "none" else f" ({self.reduction})"
        return f"scatter {'tuples' if self.axis is None else 'elements'}{how}"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        data, indices, updates = shapes
        types = step.op.output.dtype, step.op.operands[1].dtype.itemsize
        if self.axis is not None:
            params = indexing.gather_elements(data, indices, self.axis, *types, self.reduction)
            due, call = indices, "NP_SCATTER_ELEMENTS"
        else:
            params = indexing.gather_nd(data, indices, 0, *types, self.reduction)
            due, call = (*indices[:-1], *data[indices[-1] :]), "NP_SCATTER_ND"
        if updates != due:
            raise BackendError(f"updates {list(updates)} do not fit {list(due)}")
        return Run(data, call if elements(data) or elements(indices) else "", params=params)


@record
class TopK(Computation):
    """TopK: the result is int64 [2, ...], values then indices; see `LeadingSlice`.

    Values have their own dtype within their half of the memory.

    Attributes:
        axis: not negative.
        count: K, or the name of the value that holds it, which follows from shapes.
        largest: the largest elements, else the smallest.
    """

    mnemonic = "top_k"
    kernel = "top-k"
    axis: int
    count: int | str
    largest: bool

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return (self.count,) if isinstance(self.count, str) else ()

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        count = self.count
        if isinstance(count, str):
            count = int(sizing.value(count).reshape(-1)[0])
        dtype = step.op.operands[0].dtype
        params = indexing.top_k(shape, self.axis, count, dtype, largest=self.largest)
        result = (2, *shape[: self.axis], count, *shape[self.axis + 1 :])
        return Run(result, "NP_TOP_K" if elements(result) else "", params=params)


def _check_elements(op: Op, facts: Facts) -> str | None:
    data, indices = op.required(0), op.required(1)
    reason = check_dtype(data, facts, *ANY) or check_dtype(indices, facts, *_INDICES)
    rank = facts.rank(data) or 0
    if reason is None and (facts.rank(indices) != rank or not rank):
        reason = f"its indices have {facts.rank(indices)} dimensions, not {rank}"
    return reason or _check_axis(op.get("axis", 0), rank)


def _check_axis(axis: int, rank: int) -> str | None:
    return None if -rank <= axis < rank else f"axis {axis} is not one of an input of rank {rank}"


def _gather_elements(op: Op, builder: Builder) -> None:
    data, indices = op.required(0), op.required(1)
    axis = op.get("axis", 0) % builder.rank(data)
    operands = builder.slot_of(data), builder.slot_of(indices)
    _pass_exact(op, builder, builder.compute(GatherAt(axis), operands, op.output))


def _check_tuples(op: Op, facts: Facts) -> str | None:
    data, indices = op.required(0), op.required(1)
    reason = check_dtype(data, facts, *ANY) or check_dtype(indices, facts, *_INDICES)
    if reason:
        return reason
    if not facts.rank(indices):
        return "its indices are a scalar"
    depth = (facts.dims(indices) or (None,))[-1]
    if not isinstance(depth, int):
        return "the length of its tuples of indices is not known"
    if op.get("batch_dims", 0) + depth > (facts.rank(data) or 0):
        return f"tuples of {depth} indices are too long"
    return None


def _gather_tuples(op: Op, builder: Builder) -> None:
    slots = [builder.slot_of(op.required(index)) for index in range(2)]
    gather = GatherAt(None, op.get("batch_dims", 0))
    _pass_exact(op, builder, builder.compute(gather, slots, op.output))


def _pass_exact(op: Op, builder: Builder, slot: Slot) -> None:
    """Record that moved elements stay representable in their narrow dtype."""
    builder.set_exact(slot, builder.facts.dtype(op.required(0)))


def _check_scatter(op: Op, facts: Facts) -> str | None:
    data, updates = op.required(0), op.required(2)
    dtype, reduction = facts.dtype(data), op.get("reduction", "none")
    if facts.dtype(updates) != dtype:
        return "its data and its updates differ in type"
    if facts.rank(updates) is None:
        return f"the rank of {updates.name!r} is not known"
    if reduction not in indexing.REDUCTIONS:
        return f"there is no reduction {reduction!r}"
    if reduction != "none" and dtype not in _ORDERED and dtype not in NARROW:
        return f"reductions of {'' if dtype is None else dtype.name.lower()} have no kernel"
    tuples = op.kind == "ScatterND"
    return _check_tuples(op, facts) if tuples else _check_elements(op, facts)


def _scatter(op: Op, builder: Builder) -> None:
    slots = [builder.slot_of(op.required(index)) for index in range(3)]
    axis = None
    if op.kind != "ScatterND":
        axis = op.get("axis", 0) % builder.rank(op.required(0))
    reduction = op.get("reduction", "none")
    slot = builder.compute(Scatter(axis, reduction), slots, op.output)
    if reduction == "none":
        _pass_exact(op, builder, slot)


def _check_top_k(op: Op, facts: Facts) -> str | None:
    reason = check_dtype(op.required(0), facts, *_ORDERED)
    if reason:
        return reason
    if op.version >= 10 and not facts.is_fixed(op.input(1)):
        return "how many elements it takes is computed from data"
    return _check_axis(op.get("axis", -1), facts.rank(op.required(0)) or 0)


def _top_k(op: Op, builder: Builder) -> None:
    given = op.required(0)
    axis = op.get("axis", -1) % builder.rank(given)
    count = op.required(1).name or "" if op.version >= 10 else int(op.attributes["k"])
    output = Slot(f"{op.output.name} (part)", np.dtype(np.int64))
    largest = bool(op.get("largest", 1))
    both = builder.emit(TopK(axis, count, largest), [builder.slot_of(given)], output)
    for index, value in enumerate(op.outputs):
        if value.name:
            slot = builder.compute(LeadingSlice(index), [both], value)
            if index == 0:
                _pass_exact(op, builder, slot)


RULES: tuple[Rule, ...] = (
    *rules("GatherElements", lower=_gather_elements, check=_check_elements),
    *rules("GatherND", lower=_gather_tuples, check=_check_tuples),
    *rules("ScatterElements", "Scatter", "ScatterND", lower=_scatter, check=_check_scatter),
    *rules("TopK", lower=_top_k, check=_check_top_k),
)
