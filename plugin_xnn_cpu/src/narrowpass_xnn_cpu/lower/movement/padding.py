"""Pad: of the modes constant, reflect, edge and wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.movement.axes import check_float_or_int8, check_movable
from narrowpass_xnn_cpu.lower.movement.concat import Part, SliceLike
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.indexing import indexed_copy
from narrowpass_xnn_cpu.native.weights_cache import Session
from narrowpass_xnn_cpu.native.xnnpack import movement

_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pads:
    """Pads before and after each axis; negative ones crop.

    Attributes:
        axes: of the slot, in the order of the listed pads.
        rank: of the slot.
        listed: pads before each of `axes`, then after each; empty if `value` holds them.
        value: name of the value that holds the pads, which follows from shapes; else empty.
    """

    axes: tuple[int, ...]
    rank: int
    listed: tuple[int, ...] = ()
    value: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that `of` reads."""
        return (self.value,) if self.value else ()

    def of(self, sizing: Sizing) -> tuple[list[int], list[int]]:
        """Return the pads before and after all axes.

        Raises:
            BackendError: their number does not fit the axes.
        """
        listed = list(self.listed)
        if self.value:
            listed = [int(pad) for pad in sizing.value(self.value).reshape(-1)]
        if len(listed) != 2 * len(self.axes):
            raise BackendError(f"pads {listed} do not fit {len(self.axes)} axes")
        before, after = [0] * self.rank, [0] * self.rank
        for index, axis in enumerate(self.axes):
            before[axis], after[axis] = listed[index], listed[index + len(self.axes)]
        return before, after


@dataclass(frozen=True)
class Pad(Computation):
    """A tensor padded with a constant.

    Attributes:
        fill: the constant.
        pads: around each axis; negative ones count as 0.
    """

    mnemonic = "pad"
    kernel = "xnn pad"
    fill: float
    pads: Pads

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.pads.names

    def pack(self, op: LoweredOp, session: Session | None) -> movement.XnnPad:
        """See `Computation.pack`."""
        return movement.XnnPad(self.fill, op.output.dtype.itemsize)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        before, after = ([max(0, pad) for pad in pads] for pads in self.pads.of(sizing))
        result = tuple(map(sum, zip(before, shape, after, strict=True)))
        if not any(before) and not any(after):
            return Run(result, view=0)
        if not elements(shape):
            return Run(result, constant=np.full(result, self.fill, step.op.output.dtype))
        step.packed.reshape(shape, before, after, sizing.pool)
        return Run(result, step.packed.call, step.packed)


@record
class Crop(SliceLike):
    """A tensor cropped by negative pads.

    Attributes:
        pads: around each axis; positive ones count as 0.
    """

    mnemonic = "crop"
    pads: Pads

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.pads.names

    def part(self, shape: Shape, sizing: Sizing) -> Part:
        """See `SliceLike.part`."""
        before, after = ([min(0, pad) for pad in pads] for pads in self.pads.of(sizing))
        sizes = [s + b + a for s, b, a in zip(shape, before, after, strict=True)]
        if any(size < 0 for size in sizes):
            raise BackendError(f"negative pads exceed {list(shape)}")
        return [-pad for pad in before], sizes, [1] * len(shape)


@record
class PadFromInput(Computation):
    """A tensor padded with its own elements: reflected, repeated at the edge, or wrapped around.

    Attributes:
        mode: ``reflect``, ``edge`` or ``wrap``.
        pads: around each axis.
    """

    mnemonic = "pad_from_input"
    kernel = "pick"
    mode: str
    pads: Pads

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.pads.names

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        mode: Any = self.mode
        tables = []
        for size, before, after in zip(shape, *self.pads.of(sizing), strict=True):
            kept = np.arange(size)[max(0, -before) : max(0, size - max(0, -after))]
            added = max(0, before), max(0, after)
            if not kept.size and any(added):
                raise BackendError(f"{list(shape)} has no elements to fill the pads with")
            tables.append(np.pad(kept, added, mode) if any(added) else kept)
        result = tuple([table.size for table in tables])
        if all(np.array_equal(t, range(n)) for t, n in zip(tables, shape, strict=True)):
            return Run(result, view=0)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(shape)
        params = indexed_copy(tables, strides, step.op.output.dtype.itemsize)
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
    return check_float_or_int8(op, facts) if mode == "constant" else check_movable(op, facts)


def _pad(op: Op, builder: Builder) -> None:
    given, facts = op.required(0), builder.facts
    perm = builder.layout(given)
    mode, pads = op.get("mode", "constant"), _pads(op, facts, perm)
    slot = builder.slot_of(given, perm)
    if mode != "constant":
        builder.compute(PadFromInput(mode, pads), [slot], op.output, perm)
        return
    computed = pads.value and facts.constant(op.input(1)) is None
    if computed or _negative(op, facts):
        slot = builder.intermediate(Crop(pads), [slot], given)
    fill = _fill(op, facts) if op.version >= 11 else op.get("value", 0.0)
    builder.compute(Pad(fill, pads), [slot], op.output, perm)


def _pads(op: Op, facts: Facts, perm: Perm) -> Pads:
    """Return the pads of a Pad whose input has the layout `perm`."""
    rank = len(perm)
    if op.version < 11:
        listed = op.get("pads", op.get("paddings", ()))
        return Pads(tuple(map(perm.index, range(rank))), rank, tuple(map(int, listed)))
    axes = facts.constant(op.input(3))
    logical = range(rank) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    return Pads(tuple(map(perm.index, logical)), rank, value=op.required(1).name or "")


def _fill(op: Op, facts: Facts) -> float:
    """Return the padding constant in the dtype of the slot."""
    fill = op.input(2)
    value = facts.scalar(fill) or 0.0
    dtype = facts.dtype(op.required(0) if fill is None else fill)
    return value - 128 if dtype == ir.DataType.UINT8 else value


def _negative(op: Op, facts: Facts) -> bool:
    array = facts.constant(op.input(1)) if op.version >= 11 else None
    listed = op.get("pads", op.get("paddings", ())) if array is None else array.reshape(-1)
    return any(int(pad) < 0 for pad in listed)


RULES: tuple[Rule, ...] = (*rules("Pad", lower=_pad, check=_check_pad),)
