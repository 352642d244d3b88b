"""Flatten, Transpose, Squeeze, Unsqueeze, Expand, DepthToSpace, SpaceToDepth and Tile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.elementwise.reduction import drop_axes_of
from narrowpass_xnn_cpu.lower.elementwise.typed import ANY
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import (
    Dim,
    DropAxes,
    Reshape,
    add_leading_axes,
    axes_of,
    broadcast,
)
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels

MOVABLE = ANY
"""Dtypes of operators that only move elements."""

_FLOAT_OR_INT8 = (ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
"""Dtypes of operators that also pad, compare or interpolate."""


def check_movable(op: Op, facts: Facts) -> str | None:
    """Check that the first input is a tensor of a supported dtype and rank."""
    return check_dtype(op.required(0), facts, *MOVABLE)


def check_float_or_int8(op: Op, facts: Facts) -> str | None:
    """Check that the first input is a float or 8-bit tensor of supported rank."""
    return check_dtype(op.required(0), facts, *_FLOAT_OR_INT8)


def _flatten(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    axis = op.get("axis", 1)
    axis = axis + rank if axis < 0 else axis
    flat = Reshape((Dim(tuple(range(axis))), Dim(tuple(range(axis, rank)))))
    builder.compute(flat, [builder.slot_of(given)], op.output)


def _perm(op: Op, rank: int) -> list[int]:
    return list(op.get("perm", None) or range(rank - 1, -1, -1))


def _check_transpose(op: Op, facts: Facts) -> str | None:
    reason = check_movable(op, facts)
    rank = facts.rank(op.input(0)) or 0
    if reason is None and sorted(_perm(op, rank)) != list(range(rank)):
        return f"{_perm(op, rank)} is not a permutation of {rank} axes"
    return reason


def _transpose(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = _perm(op, builder.rank(given))
    # Axis perm[i] of the input is axis i of the output; elements stay where they are.
    source = builder.layout(given)
    slot = builder.slot_of(given, source)
    builder.alias(op.output, slot, tuple(perm.index(axis) for axis in source))


def _axes(op: Op, facts: Facts) -> list[int] | None:
    """Return the axes of a Squeeze or Unsqueeze; None if they are not constant."""
    if op.version < 13 or op.input(1) is None:
        listed = op.get("axes", None)
        return None if listed is None else [int(axis) for axis in listed]
    array = facts.constant(op.input(1))
    return None if array is None else [int(axis) for axis in array.reshape(-1)]


def _check_squeeze(op: Op, facts: Facts) -> str | None:
    reason = check_movable(op, facts)
    if reason:
        return reason
    axes = _axes(op, facts)
    if axes is None:
        dims = facts.dims(op.input(0)) or ()
        if op.kind == "Unsqueeze" or op.input(1) is not None:
            return "its axes are not constant"
        if not all(isinstance(dim, int) for dim in dims):
            return "it drops all axes of size 1, and sizes are not known"
        return None
    rank = (facts.rank(op.input(0)) or 0) + (len(axes) if op.kind == "Unsqueeze" else 0)
    if any(not -rank <= axis < rank for axis in axes) or len({a % rank for a in axes}) < len(axes):
        return f"its axes {axes} are not distinct axes of rank {rank}"
    return None if rank <= 6 else f"its output has {rank} dimensions; XNNPACK takes 6 at most"


def _squeeze(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    listed = _axes(op, builder.facts)
    if listed is None:
        dims = builder.facts.dims(given) or ()
        listed = [axis for axis, dim in enumerate(dims) if dim == 1]
    axes = [axis % rank for axis in listed]
    perm = builder.layout(given)
    drop = DropAxes(tuple(perm.index(axis) for axis in axes))
    builder.compute(drop, [builder.slot_of(given, perm)], op.output, drop_axes_of(perm, axes))


def _unsqueeze(op: Op, builder: Builder) -> None:
    given = op.required(0)
    listed = _axes(op, builder.facts) or []
    rank = builder.rank(given) + len(listed)
    axes = sorted(axis % rank for axis in listed)
    old = [axis for axis in range(rank) if axis not in axes]
    source = builder.layout(given)
    slot = builder.slot_of(given, source)
    if source != identity(len(old)):
        perm = (*axes, *(old[axis] for axis in source))
        builder.compute(add_leading_axes(len(old), rank), [slot], op.output, perm)
        return
    places = iter(axes_of(*range(len(old))))
    insert = Reshape(tuple(Dim() if axis in axes else next(places) for axis in range(rank)))
    builder.compute(insert, [slot], op.output, identity(rank))


@record
class Expand(Computation):
    """A tensor that is broadcast to a shape.

    Attributes:
        target: name of the value that holds the target shape.
    """

    mnemonic = "expand"
    kernel = "copy"
    target: str

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return (self.target,)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        target = tuple(int(dim) for dim in sizing.value(self.target).reshape(-1))
        if any(dim < 0 for dim in target):
            raise BackendError(f"{list(target)} is no shape")
        result = broadcast(shape, target)
        if elements(result) == elements(shape):
            return Run(result, view=0)
        if not elements(result):
            return Run(result)
        strides = kernels.broadcast_strides(shape, result)
        itemsize = step.op.output.dtype.itemsize
        params = kernels.copy(result, strides, kernels.dense_strides(result), itemsize)
        return Run(result, "NP_COPY", params=params)


def _check_expand(op: Op, facts: Facts) -> str | None:
    if not facts.is_fixed(op.input(1)):
        return "its target shape is computed from data"
    if (facts.rank(op.output) or 7) > 6:
        return "the rank of its output is not known, or above 6"
    return check_movable(op, facts)


def _expand(op: Op, builder: Builder) -> None:
    target = op.required(1).name or ""
    builder.compute(Expand(target), [builder.slot_of(op.required(0))], op.output)


@record
class PixelShuffle(Computation):
    """DepthToSpace or SpaceToDepth of [N, H, W, C], as one strided copy.

    Attributes:
        block: height and width of a block.
        mode: ``depth-dcr``, ``depth-crd`` (DepthToSpace) or ``space`` (SpaceToDepth).
    """

    mnemonic = "pixel_shuffle"
    kernel = "copy"
    block: int
    mode: str

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        n, h, w, c = shapes[0]
        block = self.block
        if self.mode == "space":
            if h % block or w % block:
                raise BackendError(f"an image of {h} x {w} has no whole blocks of {block}")
            parts = (n, h // block, block, w // block, block, c)
            order = (0, 1, 3, 2, 4, 5)
            result = (n, h // block, w // block, c * block * block)
        else:
            if c % (block * block):
                raise BackendError(f"{c} channels do not form blocks of {block} x {block}")
            rest = c // (block * block)
            last = (block, block, rest) if self.mode == "depth-dcr" else (rest, block, block)
            parts = (n, h, w, *last)
            order = (0, 1, 3, 2, 4, 5) if self.mode == "depth-dcr" else (0, 1, 4, 2, 5, 3)
            result = (n, h * block, w * block, rest)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(parts)
        sizes = [parts[axis] for axis in order]
        params = kernels.copy(
            sizes,
            [strides[axis] for axis in order],
            kernels.dense_strides(sizes),
            step.op.output.dtype.itemsize,
        )
        return Run(result, "NP_COPY", params=params)


def _check_image(op: Op, facts: Facts) -> str | None:
    if facts.rank(op.input(0)) != 4:
        return "its input is no image"
    if op.kind == "SpaceToDepth" and op.get("mode", "DCR") != "DCR":
        return f"mode {op.get('mode', '')} has no kernel"
    return check_movable(op, facts)


def _blocks(op: Op, builder: Builder) -> None:
    perm = (0, 2, 3, 1)
    mode = "space"
    if op.kind == "DepthToSpace":
        mode = f"depth-{op.get('mode', 'DCR').lower()}"
    blocks = PixelShuffle(op.get("blocksize", 1), mode)
    builder.compute(blocks, [builder.slot_of(op.required(0), perm)], op.output, perm)


@record
class Tile(Computation):
    """A tensor repeated along its axes.

    Attributes:
        repeats: name of the value that holds the number of repetitions of each axis.
    """

    mnemonic = "tile"
    kernel = "copy"
    repeats: str

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return (self.repeats,)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        repeats = [int(count) for count in sizing.value(self.repeats).reshape(-1)]
        if len(repeats) != len(shape) or any(count < 0 for count in repeats):
            raise BackendError(f"{list(shape)} cannot be repeated {repeats} times")
        result = tuple(np.multiply(shape, repeats).tolist())
        if not elements(result):
            return Run(result)
        if result == shape:
            return Run(result, view=0)
        sizes, strides = [], []
        for count, size, stride in zip(repeats, shape, kernels.dense_strides(shape), strict=True):
            if count > 1:
                sizes.append(count)
                strides.append(0)
            sizes.append(size)
            strides.append(stride)
        itemsize = step.op.output.dtype.itemsize
        params = kernels.copy(sizes, strides, kernels.dense_strides(sizes), itemsize)
        return Run(result, "NP_COPY", params=params)


def _check_tile(op: Op, facts: Facts) -> str | None:
    if op.version < 6 or not facts.is_fixed(op.input(1)):
        return "its repeats are computed from data"
    if (facts.rank(op.input(0)) or 5) > 4:
        return "tensors of more than 4 dimensions are not covered"
    return check_movable(op, facts)


def _tile(op: Op, builder: Builder) -> None:
    repeats = op.required(1).name or ""
    builder.compute(Tile(repeats), [builder.slot_of(op.required(0))], op.output)


RULES: tuple[Rule, ...] = (
    *rules("Flatten", lower=_flatten, check=check_movable),
    *rules("Transpose", lower=_transpose, check=_check_transpose),
    *rules("Squeeze", lower=_squeeze, check=_check_squeeze),
    *rules("Unsqueeze", lower=_unsqueeze, check=_check_squeeze),
    *rules("Expand", lower=_expand, check=_check_expand),
    *rules("DepthToSpace", "SpaceToDepth", lower=_blocks, check=_check_image),
    *rules("Tile", lower=_tile, check=_check_tile),
)
