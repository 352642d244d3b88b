"""Pad: constants around a tensor, or elements of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.join import Part, Sliced
from narrowpass_xnn_cpu.lower.op import Op, lowers
from narrowpass_xnn_cpu.lower.shape import check_filled, check_moved
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.operators import Pad
from narrowpass_xnn_cpu.native.picking import pick
from narrowpass_xnn_cpu.plan.step import Run, Shape, Sizing, Slot, Step, elements

Pads = tuple[list[int], list[int]]
"""Elements before and after, for each axis; negative ones are cut off."""

_MODES = ("constant", "reflect", "edge", "wrap")


class Padded(Step):
    """A tensor with constants around it."""

    kernel = "xnn pad"

    def __init__(
        self,
        given: Slot,
        output: Slot,
        value: float,
        pads: Callable[[Sizing], Pads],
        values: Sequence[str],
    ) -> None:
        super().__init__([given], output)
        self.values = tuple(values)
        self._pads = pads
        self._value = value
        self._operator = Pad(value, output.dtype.itemsize)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        before, after = ([max(0, pad) for pad in pads] for pads in self._pads(sizing))
        result = tuple(map(sum, zip(before, shape, after, strict=True)))
        if not any(before) and not any(after):
            return Run(result, view=0)
        if not elements(shape):
            return Run(result, constant=np.full(result, self._value, self.output.dtype))
        self._operator.reshape(shape, before, after, sizing.pool)
        return Run(result, self._operator.call, self._operator)


class Extended(Step):
    """A tensor with elements of its own around it: mirrored, repeated or from its other end.

    Args:
        given: the tensor.
        output: the larger one.
        mode: of the Pad, but constant.
        pads: gives the pads.
        values: names of the values that `pads` asks for.
    """

    kernel = "pick"

    def __init__(
        self,
        given: Slot,
        output: Slot,
        mode: str,
        pads: Callable[[Sizing], Pads],
        values: Sequence[str],
    ) -> None:
        super().__init__([given], output)
        self.values = tuple(values)
        self._pads = pads
        self._mode: Any = mode

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        tables = []
        for size, before, after in zip(shape, *self._pads(sizing), strict=True):
            kept = np.arange(size)[max(0, -before) : max(0, size - max(0, -after))]
            added = max(0, before), max(0, after)
            if not kept.size and any(added):
                raise BackendError(f"{list(shape)} has no elements to fill the pads with")
            tables.append(np.pad(kept, added, self._mode) if any(added) else kept)
        result = tuple([table.size for table in tables])
        if all(np.array_equal(t, range(n)) for t, n in zip(tables, shape, strict=True)):
            return Run(result, view=0)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(shape)
        params = pick(tables, strides, self.output.dtype.itemsize)
        return Run(result, "NP_INDEXED_COPY", params=params)


def _check_pad(op: Op, facts: Facts) -> str | None:
    mode = op.get("mode", "constant")
    if mode not in _MODES:
        return f"padding of mode {mode} has no kernel"
    if op.version >= 11:
        if not facts.is_fixed(op.input(1)):
            return "its pads are computed from data"
        if op.input(2) is not None and facts.scalar(op.input(2)) is None:
            return "its value is not constant"
        axes = op.input(3)
        if axes is not None and not facts.is_constant(axes):
            return "its axes are not constant"
    elif op.get("pads", op.get("paddings", None)) is None:
        return "it has no pads"
    if facts.rank(op.input(0)) == 0:
        return "its input has no axes"
    return check_filled(op, facts) if mode == "constant" else check_moved(op, facts)


@lowers("Pad", check=_check_pad)
def _pad(op: Op, builder: Builder) -> None:
    given, facts = op.required(0), builder.facts
    rank = builder.rank(given)
    perm = builder.layout(given)
    axes = list(range(rank))
    name: str | None = None
    value = 0.0
    if op.version >= 11:
        name = op.required(1).name or ""
        value = _fill(op, facts)
        listed = facts.constant(op.input(3))
        if listed is not None:
            axes = [int(axis) % rank for axis in listed.reshape(-1)]
    else:
        value = op.get("value", 0.0)

    def pads(sizing: Sizing) -> Pads:
        if name is None:
            listed = [int(pad) for pad in op.get("pads", op.get("paddings", None))]
        else:
            listed = [int(pad) for pad in sizing.value(name).reshape(-1)]
        if len(listed) != 2 * len(axes):
            raise BackendError(f"pads {listed} do not fit {len(axes)} axes")
        before, after = [0] * rank, [0] * rank
        for index, axis in enumerate(axes):
            at = perm.index(axis)
            before[at], after[at] = listed[index], listed[index + len(axes)]
        return before, after

    def cropped(shape: Shape, sizing: Sizing) -> Part:
        before, after = ([min(0, pad) for pad in pads_] for pads_ in pads(sizing))
        sizes = [s + b + a for s, b, a in zip(shape, before, after, strict=True)]
        if any(size < 0 for size in sizes):
            raise BackendError(f"negative pads take away more than there is of {list(shape)}")
        return [-pad for pad in before], sizes, [1] * rank

    names = [] if name is None else [name]
    slot = builder.at(given, perm)
    mode = op.get("mode", "constant")
    if mode != "constant":
        builder.emit(Extended(slot, builder.new(op.output), mode, pads, names), op.output, perm)
        return
    known = None if name is not None and facts.constant(op.input(1)) is None else True
    if known is None or _negative(op, facts):
        # Negative pads cut off; the rest is padded.
        slot = builder.emit(Sliced(slot, builder.scratch(given), cropped, names))
    step = Padded(slot, builder.new(op.output), value, pads, names)
    builder.emit(step, op.output, perm)


def _fill(op: Op, facts: Facts) -> float:
    """Give what is put around, as a number of the type that is computed with."""
    fill = op.input(2)
    value = facts.scalar(fill) or 0.0
    dtype = facts.dtype(op.required(0) if fill is None else fill)
    return value - 128 if dtype == ir.DataType.UINT8 else value


def _negative(op: Op, facts: Facts) -> bool:
    array = facts.constant(op.input(1)) if op.version >= 11 else None
    listed = op.get("pads", op.get("paddings", ())) if array is None else array.reshape(-1)
    return any(int(pad) < 0 for pad in listed)
