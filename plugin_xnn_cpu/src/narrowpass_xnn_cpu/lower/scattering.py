"""Operators that gather, scatter and choose elements by indices that runs compute.

An index that is out of range is an error of the run, which names the node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.facts import NARROW, Facts
from narrowpass_xnn_cpu.lower.layer_norm import Piece
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs
from narrowpass_xnn_cpu.lower.typed import ANY
from narrowpass_xnn_cpu.native import indexing
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

_INDICES = (ir.DataType.INT64, ir.DataType.INT32)
_ORDERED = (ir.DataType.FLOAT, ir.DataType.DOUBLE, *_INDICES)
"""Types that reductions and TopK have code for."""


class Picked(Step):
    """GatherElements, or GatherND where there is no axis.

    Args:
        given: of any type.
        indices: int64 or int32.
        output: of the type of `given`.
        axis: of GatherElements; None for GatherND.
        batched: leading axes that data and indices of GatherND have both.
    """

    def __init__(
        self, given: Slot, indices: Slot, output: Slot, axis: int | None, batched: int = 0
    ) -> None:
        super().__init__([given, indices], output)
        self.kernel = "gather tuples" if axis is None else "gather elements"
        self._axis, self._batched = axis, batched

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        data, indices = shapes
        dtype, index_size = self.output.dtype, self.inputs[1].dtype.itemsize
        if self._axis is not None:
            params = indexing.along_axis(data, indices, self._axis, dtype, index_size)
            return Run(indices, "NP_GATHER_ELEMENTS" if elements(indices) else "", params=params)
        params = indexing.at_tuples(data, indices, self._batched, dtype, index_size)
        result = (*indices[:-1], *data[self._batched + indices[-1] :])
        return Run(result, "NP_GATHER_ND" if elements(result) else "", params=params)


class Scattered(Step):
    """ScatterElements, or ScatterND where there is no axis.

    Args:
        slots: the data, int64 or int32 indices, and updates of the type of the data.
        output: of the same type.
        axis: of ScatterElements; None for ScatterND.
        reduction: one of `indexing.REDUCTIONS`.
    """

    in_place: Sequence[int] = (0,)

    def __init__(
        self, slots: Sequence[Slot], output: Slot, axis: int | None, reduction: str
    ) -> None:
        super().__init__(slots, output)
        how = "" if reduction == "none" else f" ({reduction})"
        self.kernel = f"scatter {'tuples' if axis is None else 'elements'}{how}"
        self._axis, self._reduction = axis, reduction

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        data, indices, updates = shapes
        types = self.output.dtype, self.inputs[1].dtype.itemsize
        if self._axis is not None:
            params = indexing.along_axis(data, indices, self._axis, *types, self._reduction)
            due, call = indices, "NP_SCATTER_ELEMENTS"
        else:
            params = indexing.at_tuples(data, indices, 0, *types, self._reduction)
            due, call = (*indices[:-1], *data[indices[-1] :]), "NP_SCATTER_ND"
        if updates != due:
            raise BackendError(f"updates {list(updates)} do not fit {list(due)}")
        return Run(data, call if elements(data) or elements(indices) else "", params=params)


class Best(Step):
    """TopK: values, and int64 indices after them; see `Piece`.

    Args:
        given: float32, float64, int32 or int64.
        output: int64 [2, ...]: the values have half of the memory.
        axis: from 0 on.
        largest: the largest elements, else the smallest.
        count: how many; or the name of a value from shapes that says so.
    """

    kernel = "top-k"

    def __init__(
        self, given: Slot, output: Slot, axis: int, count: int | str, *, largest: bool
    ) -> None:
        super().__init__([given], output)
        self.values = (count,) if isinstance(count, str) else ()
        self._axis, self._count, self._largest = axis, count, largest

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        count = self._count
        if isinstance(count, str):
            count = int(sizing.value(count).reshape(-1)[0])
        dtype = self.inputs[0].dtype
        params = indexing.top_k(shape, self._axis, count, dtype, largest=self._largest)
        result = (2, *shape[: self._axis], count, *shape[self._axis + 1 :])
        return Run(result, "NP_TOP_K" if elements(result) else "", params=params)


def _check_elements(op: Op, facts: Facts) -> str | None:
    data, indices = op.required(0), op.required(1)
    reason = needs(data, facts, *ANY) or needs(indices, facts, *_INDICES)
    rank = facts.rank(data) or 0
    if reason is None and (facts.rank(indices) != rank or not rank):
        reason = f"its indices have {facts.rank(indices)} dimensions, not {rank}"
    return reason or _check_axis(op.get("axis", 0), rank)


def _check_axis(axis: int, rank: int) -> str | None:
    return None if -rank <= axis < rank else f"axis {axis} is not one of an input of rank {rank}"


@lowers("GatherElements", check=_check_elements)
def _gather_elements(op: Op, builder: Builder) -> None:
    data, indices = op.required(0), op.required(1)
    axis = op.get("axis", 0) % builder.rank(data)
    step = Picked(builder.at(data), builder.at(indices), builder.new(op.output), axis)
    _pass_exact(op, builder, builder.emit(step, op.output))


def _check_tuples(op: Op, facts: Facts) -> str | None:
    data, indices = op.required(0), op.required(1)
    reason = needs(data, facts, *ANY) or needs(indices, facts, *_INDICES)
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


@lowers("GatherND", check=_check_tuples)
def _gather_tuples(op: Op, builder: Builder) -> None:
    slots = [builder.at(op.required(index)) for index in range(2)]
    step = Picked(slots[0], slots[1], builder.new(op.output), None, op.get("batch_dims", 0))
    _pass_exact(op, builder, builder.emit(step, op.output))


def _pass_exact(op: Op, builder: Builder, slot: Slot) -> None:
    """Say that elements of a narrow type stay such when they are moved."""
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


@lowers("ScatterElements", "Scatter", "ScatterND", check=_check_scatter)
def _scatter(op: Op, builder: Builder) -> None:
    slots = [builder.at(op.required(index)) for index in range(3)]
    axis = None
    if op.kind != "ScatterND":
        axis = op.get("axis", 0) % builder.rank(op.required(0))
    reduction = op.get("reduction", "none")
    slot = builder.emit(Scattered(slots, builder.new(op.output), axis, reduction), op.output)
    if reduction == "none":
        _pass_exact(op, builder, slot)


def _check_top_k(op: Op, facts: Facts) -> str | None:
    reason = needs(op.required(0), facts, *_ORDERED)
    if reason:
        return reason
    if op.version >= 10 and not facts.is_fixed(op.input(1)):
        return "how many elements it takes is computed from data"
    return _check_axis(op.get("axis", -1), facts.rank(op.required(0)) or 0)


@lowers("TopK", check=_check_top_k)
def _top_k(op: Op, builder: Builder) -> None:
    given = op.required(0)
    axis = op.get("axis", -1) % builder.rank(given)
    count = op.required(1).name or "" if op.version >= 10 else int(op.attributes["k"])
    output = Slot(f"{op.output.name} (part)", np.dtype(np.int64))
    largest = bool(op.get("largest", 1))
    both = builder.emit(Best(builder.at(given), output, axis, count, largest=largest))
    for index, value in enumerate(op.outputs):
        if value.name:
            slot = builder.emit(Piece(both, builder.new(value), index), value)
            if index == 0:
                _pass_exact(op, builder, slot)
