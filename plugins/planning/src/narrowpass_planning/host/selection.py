"""Numpy kernels that gather, scatter, sort, count or compare elements.

Indices that are out of range are errors, which name the node. numpy checks them before it uses
them, in a copy: others may write to a feed in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

_AT: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def top_k(op: Op) -> Kernel:
    """Return TopK: the largest or smallest elements along an axis; ties in the order of index."""
    axis, largest = op.get("axis", -1), bool(op.get("largest", 1))

    def run(x: Array, count: Array | None = None) -> list[Array]:
        k = int(op.attributes["k"] if count is None else count.item())
        size = x.shape[axis]
        if not 0 <= k <= size:
            raise ValueError(f"{k} elements of {size} are wanted")
        if largest:
            turned = np.argsort(np.flip(x, axis), axis, kind="stable")
            order = np.flip(size - 1 - turned, axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        order = order.take(range(k), axis)
        return [np.take_along_axis(x, order, axis), order.astype(np.int64)]

    return run


def scatter_elements(op: Op) -> Kernel:
    """Return ScatterElements."""
    axis, reduction = op.get("axis", 0), _reduction(op)

    def run(data: Array, indices: Array, updates: Array) -> Array:
        if indices.shape != updates.shape or indices.ndim != data.ndim:
            raise ValueError(f"updates {list(updates.shape)} do not fit {list(indices.shape)}")
        at = axis % max(1, data.ndim)
        grid = [*np.ogrid[tuple(slice(size) for size in indices.shape)]]
        grid[at] = indices.copy()
        return _scattered(data, tuple(grid), updates, reduction)

    return run


def scatter_nd(op: Op) -> Kernel:
    """Return ScatterND."""
    reduction = _reduction(op)

    def run(data: Array, indices: Array, updates: Array) -> Array:
        places = tuple(np.moveaxis(indices.copy(), -1, 0))
        return _scattered(data, places, updates, reduction)

    return run


def _reduction(op: Op) -> str:
    found = op.get("reduction", "none")
    reduction = found.decode() if isinstance(found, bytes) else str(found)
    if reduction not in ("none", *_AT):
        raise KeyError(reduction)
    return reduction


def _scattered(data: Array, places: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        output = data.copy()
        output[places] = updates
        return output
    # Reductions of float16 and bfloat16 are rounded once, at the end.
    narrow = data.dtype.itemsize == 2 and data.dtype.kind not in "iu"
    wide = data.astype(np.float32) if narrow else data.copy()
    _AT[reduction].at(wide, places, updates.astype(wide.dtype, copy=False))
    return wide.astype(data.dtype, copy=False)


def arg_extreme(op: Op) -> Kernel:
    """Return ArgMax or ArgMin: of equal elements the first, or the last."""
    function = np.argmax if op.kind == "ArgMax" else np.argmin
    axis, keep = op.get("axis", 0), bool(op.get("keepdims", 1))
    last = bool(op.get("select_last_index", 0))

    def run(x: Array) -> Array:
        if not last:
            return np.asarray(function(x, axis=axis, keepdims=keep), np.int64)
        found = function(np.flip(x, axis), axis=axis, keepdims=keep)
        return np.asarray(x.shape[axis] - 1 - found, np.int64)

    return run


def cumulative(op: Op) -> Kernel:
    """Return CumSum or CumProd; float16 and bfloat16 accumulate in float32."""
    function: Any = np.cumsum if op.kind == "CumSum" else np.cumprod
    exclusive, reverse = bool(op.get("exclusive", 0)), bool(op.get("reverse", 0))
    start = 0 if op.kind == "CumSum" else 1

    def run(x: Array, given: Array) -> Array:
        axis = int(given.item())
        narrow = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"
        rows = np.flip(x, axis) if reverse else x
        totals = function(rows, axis, dtype=np.float32 if narrow else x.dtype)
        if exclusive:
            # No first element where the axis has none, whose totals are none as well.
            begin = [(0, 0)] * x.ndim
            begin[axis] = (min(x.shape[axis], 1), 0)
            before = totals.take(range(x.shape[axis] - 1), axis)
            totals = np.pad(before, begin, constant_values=start)
        totals = np.flip(totals, axis) if reverse else totals
        return np.ascontiguousarray(totals.astype(x.dtype, copy=False))

    return run


def one_hot(op: Op) -> Kernel:
    """Return OneHot: the on value at each index, the off value elsewhere."""
    axis = op.get("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(-1)[0])
        rank = indices.ndim + 1
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is not one of {rank}")
        at = axis % rank
        whole = indices.astype(np.int64)
        whole = np.where(whole < 0, whole + count, whole)
        numbers = np.arange(count).reshape(-1, *(1,) * (rank - 1 - at))
        output: Array = np.where(np.expand_dims(whole, at) == numbers, values[1], values[0])
        return output

    return run


def compress(op: Op) -> Kernel:
    """Return Compress."""
    axis = op.get("axis", None)
    return lambda x, condition: np.compress(condition, x, axis)


def reverse_sequence(op: Op) -> Kernel:
    """Return ReverseSequence."""
    batch, time = op.get("batch_axis", 1), op.get("time_axis", 0)

    def run(x: Array, lengths: Array) -> Array:
        rows = np.moveaxis(x, (batch, time), (0, 1))
        steps = np.arange(rows.shape[1])
        sizes = lengths.reshape(-1, 1)
        if sizes.shape[0] != rows.shape[0] or (sizes < 0).any() or (sizes > steps.size).any():
            raise ValueError(f"lengths {lengths.tolist()} do not fit {list(x.shape)}")
        order = np.where(steps < sizes, sizes - 1 - steps, steps)
        turned: Array = rows[np.arange(rows.shape[0])[:, None], order]
        return np.ascontiguousarray(np.moveaxis(turned, (0, 1), (batch, time)))

    return run


def eye_like(op: Op) -> Kernel:
    """Return EyeLike."""
    kind, offset = op.get("dtype", None), op.get("k", 0)

    def run(x: Array) -> Array:
        dtype = x.dtype if kind is None else ir.DataType(kind).numpy()
        rows, columns = x.shape
        return np.eye(rows, columns, offset).astype(dtype)

    return run


def unique(op: Op) -> Kernel:
    """Return Unique: distinct elements or slices, first indices, inverse indices and counts."""
    axis, ordered, outputs = op.get("axis", None), bool(op.get("sorted", 1)), len(op.outputs)

    def run(x: Array) -> list[Array]:
        found, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        inverse = inverse.reshape(-1)
        if not ordered:
            order = np.argsort(first)
            found = found[order] if axis is None else found.take(order, axis)
            first, counts = first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        results = [found, *(item.astype(np.int64) for item in (first, inverse, counts))]
        return results[:outputs]

    return run


def space_to_depth(op: Op) -> Kernel:
    """Return SpaceToDepth."""
    block = int(op.attributes["blocksize"])
    mode = op.get("mode", "DCR")
    order = (0, 1, 3, 5, 2, 4) if mode in ("CRD", b"CRD") else (0, 3, 5, 1, 2, 4)

    def run(x: Array) -> Array:
        images, channels, height, width = x.shape
        split = x.reshape(images, channels, height // block, block, width // block, block)
        moved = split.transpose(order)
        return moved.reshape(images, -1, height // block, width // block)

    return run


def suppress(op: Op) -> Kernel:
    """Return NonMaxSuppression: greedy by score, per batch and class."""
    centered = bool(op.get("center_point_box", 0))

    def run(
        boxes: Array,
        scores: Array,
        most: Array | None = None,
        overlap: Array | None = None,
        least: Array | None = None,
    ) -> Array:
        count = 0 if most is None else int(most.item())
        limit = 0.0 if overlap is None else float(overlap.item())
        found = []
        for batch in range(scores.shape[0]):
            corners = _corners(boxes[batch], centered=centered)
            for kind in range(scores.shape[1]):
                row = scores[batch, kind]
                order = np.argsort(-row, kind="stable")
                if least is not None:
                    order = order[row[order] > least.item()]
                found += [[batch, kind, box] for box in _chosen(corners, order, count, limit)]
        return np.array(found, np.int64).reshape(-1, 3)

    return run


def _corners(boxes: Array, *, centered: bool) -> Array:
    """Return [least y, least x, greatest y, greatest x] of boxes in one of the two forms."""
    if centered:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _chosen(corners: Array, order: Array, count: int, limit: float) -> list[int]:
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    chosen: list[int] = []
    while order.size and len(chosen) < count:
        best, rest = int(order[0]), order[1:]
        chosen.append(best)
        low = np.maximum(corners[best, :2], corners[rest, :2])
        high = np.minimum(corners[best, 2:], corners[rest, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        whole = areas[best] + areas[rest] - shared
        share = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
        order = rest[share <= limit]
    return chosen
