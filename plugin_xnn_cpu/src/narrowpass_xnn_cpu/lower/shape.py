"""Operators that look at the same elements in another way, or repeat them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, Step, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.op import Op, lowers, needs
from narrowpass_xnn_cpu.lower.reduction import without
from narrowpass_xnn_cpu.lower.steps import Reshaped, broadcast
from narrowpass_xnn_cpu.lower.typed import ANY
from narrowpass_xnn_cpu.native import kernels

MOVED = ANY
"""Types of elements that are only moved."""

_FILLED = (ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
"""Types of elements that are moved, with others between or compared on the way."""


def check_moved(op: Op, facts: Facts) -> str | None:
    """Check that the first input is a tensor of numbers or conditions, of a rank that is known."""
    return needs(op.required(0), facts, *MOVED)


def check_filled(op: Op, facts: Facts) -> str | None:
    """Check that the first input is a tensor of floats or bytes, of a rank that is known."""
    return needs(op.required(0), facts, *_FILLED)


@lowers("Flatten", check=check_moved)
def _flatten(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    axis = op.get("axis", 1)
    axis = axis + rank if axis < 0 else axis

    def flat(shape: Shape) -> Shape:
        return elements(shape[:axis]), elements(shape[axis:])

    builder.emit(Reshaped(builder.at(given), builder.new(op.output), flat), op.output)


def _perm(op: Op, rank: int) -> list[int]:
    return list(op.get("perm", None) or range(rank - 1, -1, -1))


def _check_transpose(op: Op, facts: Facts) -> str | None:
    reason = check_moved(op, facts)
    rank = facts.rank(op.input(0)) or 0
    if reason is None and sorted(_perm(op, rank)) != list(range(rank)):
        return f"{_perm(op, rank)} is not a permutation of {rank} axes"
    return reason


@lowers("Transpose", check=_check_transpose)
def _transpose(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = _perm(op, builder.rank(given))
    # Axis perm[i] of the input is axis i of the output; nothing moves until somebody asks.
    source = builder.layout(given)
    slot = builder.at(given, source)
    builder.alias(op.output, slot, tuple(perm.index(axis) for axis in source))


def _axes(op: Op, facts: Facts) -> list[int] | None:
    """Give the axes of a Squeeze or Unsqueeze; None where they are not known."""
    if op.version < 13 or op.input(1) is None:
        listed = op.get("axes", None)
        return None if listed is None else [int(axis) for axis in listed]
    array = facts.constant(op.input(1))
    return None if array is None else [int(axis) for axis in array.reshape(-1)]


def _check_squeeze(op: Op, facts: Facts) -> str | None:
    reason = check_moved(op, facts)
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


@lowers("Squeeze", check=_check_squeeze)
def _squeeze(op: Op, builder: Builder) -> None:
    given = op.required(0)
    rank = builder.rank(given)
    listed = _axes(op, builder.facts)
    if listed is None:
        dims = builder.facts.dims(given) or ()
        listed = [axis for axis, dim in enumerate(dims) if dim == 1]
    axes = [axis % rank for axis in listed]
    perm = builder.layout(given)
    gone = [perm.index(axis) for axis in axes]

    def drop(shape: Shape) -> Shape:
        if any(shape[axis] != 1 for axis in gone):
            raise BackendError(f"axes of {list(shape)} to be dropped are not of size 1")
        return tuple(size for axis, size in enumerate(shape) if axis not in gone)

    step = Reshaped(builder.at(given, perm), builder.new(op.output), drop)
    builder.emit(step, op.output, without(perm, axes))


@lowers("Unsqueeze", check=_check_squeeze)
def _unsqueeze(op: Op, builder: Builder) -> None:
    given = op.required(0)
    listed = _axes(op, builder.facts) or []
    rank = builder.rank(given) + len(listed)
    axes = sorted(axis % rank for axis in listed)
    old = [axis for axis in range(rank) if axis not in axes]
    source = builder.layout(given)
    if source == identity(len(old)):
        perm = identity(rank)

        def insert(shape: Shape) -> Shape:
            sizes = iter(shape)
            return tuple(1 if axis in axes else next(sizes) for axis in range(rank))
    else:
        perm = (*axes, *(old[axis] for axis in source))

        def insert(shape: Shape) -> Shape:
            return (1,) * len(axes) + tuple(shape)

    step = Reshaped(builder.at(given, source), builder.new(op.output), insert)
    builder.emit(step, op.output, perm)


class Expanded(Step):
    """A tensor repeated along axes of size 1."""

    kernel = "copy"

    def __init__(self, given: Slot, output: Slot, target: str) -> None:
        super().__init__([given], output)
        self.values = (target,)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        target = tuple(int(dim) for dim in sizing.value(self.values[0]).reshape(-1))
        if any(dim < 0 for dim in target):
            raise BackendError(f"{list(target)} is no shape")
        result = broadcast(shape, target)
        if elements(result) == elements(shape):
            return Run(result, view=0)
        if not elements(result):
            return Run(result)
        strides = kernels.broadcast_strides(shape, result)
        params = kernels.copy(
            result, strides, kernels.dense_strides(result), self.output.dtype.itemsize
        )
        return Run(result, "NP_COPY", params=params)


def _check_expand(op: Op, facts: Facts) -> str | None:
    if not facts.is_fixed(op.input(1)):
        return "its target shape is computed from data"
    if (facts.rank(op.output) or 7) > 6:
        return "the rank of its output is not known, or above 6"
    return check_moved(op, facts)


@lowers("Expand", check=_check_expand)
def _expand(op: Op, builder: Builder) -> None:
    target = op.required(1).name or ""
    step = Expanded(builder.at(op.required(0)), builder.new(op.output), target)
    builder.emit(step, op.output)


class Blocks(Step):
    """Blocks of pixels to channels, or back, of [N, H, W, C]: one strided copy.

    Args:
        given: the image.
        output: the other one.
        block: side of a block.
        kind: ``depth-dcr``, ``depth-crd`` (channels to pixels) or ``space``.
    """

    kernel = "copy"

    def __init__(self, given: Slot, output: Slot, block: int, kind: str) -> None:
        super().__init__([given], output)
        self._block = block
        self._kind = kind

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        n, h, w, c = shapes[0]
        block = self._block
        if self._kind == "space":
            if h % block or w % block:
                raise BackendError(f"an image of {h} x {w} has no whole blocks of {block}")
            parts = (n, h // block, block, w // block, block, c)
            order = (0, 1, 3, 2, 4, 5)
            result = (n, h // block, w // block, c * block * block)
        else:
            if c % (block * block):
                raise BackendError(f"{c} channels do not form blocks of {block} x {block}")
            rest = c // (block * block)
            last = (block, block, rest) if self._kind == "depth-dcr" else (rest, block, block)
            parts = (n, h, w, *last)
            order = (0, 1, 3, 2, 4, 5) if self._kind == "depth-dcr" else (0, 1, 4, 2, 5, 3)
            result = (n, h * block, w * block, rest)
        if not elements(result):
            return Run(result)
        strides = kernels.dense_strides(parts)
        sizes = [parts[axis] for axis in order]
        params = kernels.copy(
            sizes,
            [strides[axis] for axis in order],
            kernels.dense_strides(sizes),
            self.output.dtype.itemsize,
        )
        return Run(result, "NP_COPY", params=params)


def _check_image(op: Op, facts: Facts) -> str | None:
    if facts.rank(op.input(0)) != 4:
        return "its input is no image"
    if op.kind == "SpaceToDepth" and op.get("mode", "DCR") != "DCR":
        return f"mode {op.get('mode', '')} has no kernel"
    return check_moved(op, facts)


@lowers("DepthToSpace", "SpaceToDepth", check=_check_image)
def _blocks(op: Op, builder: Builder) -> None:
    perm = (0, 2, 3, 1)
    kind = "space"
    if op.kind == "DepthToSpace":
        kind = f"depth-{op.get('mode', 'DCR').lower()}"
    given = builder.at(op.required(0), perm)
    step = Blocks(given, builder.new(op.output), op.get("blocksize", 1), kind)
    builder.emit(step, op.output, perm)


class Tiled(Step):
    """A tensor repeated as a whole."""

    kernel = "copy"

    def __init__(self, given: Slot, output: Slot, repeats: str) -> None:
        super().__init__([given], output)
        self.values = (repeats,)

    def size(self, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Step.size`."""
        (shape,) = shapes
        repeats = [int(count) for count in sizing.value(self.values[0]).reshape(-1)]
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
        params = kernels.copy(
            sizes, strides, kernels.dense_strides(sizes), self.output.dtype.itemsize
        )
        return Run(result, "NP_COPY", params=params)


def _check_tile(op: Op, facts: Facts) -> str | None:
    if op.version < 6 or not facts.is_fixed(op.input(1)):
        return "its repeats are computed from data"
    if (facts.rank(op.input(0)) or 5) > 4:
        return "tensors of more than 4 dimensions are not covered"
    return check_moved(op, facts)


@lowers("Tile", check=_check_tile)
def _tile(op: Op, builder: Builder) -> None:
    repeats = op.required(1).name or ""
    step = Tiled(builder.at(op.required(0)), builder.new(op.output), repeats)
    builder.emit(step, op.output)
