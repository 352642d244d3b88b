"""Numpy kernels that only move elements: parts, orders and copies of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def axes_of(op: Op, given: Array | None) -> tuple[int, ...] | None:
    """Return the axes of an attribute or of an input; None where there are neither."""
    listed = op.get("axes", None) if given is None else given.reshape(-1).tolist()
    return None if listed is None else tuple(listed)


def gather(op: Op) -> Kernel:
    """Return Gather."""
    axis = op.get("axis", 0)

    def run(data: Array, indices: Array) -> Array:
        size = data.shape[axis]
        if indices.size and (indices.min() < -size or indices.max() >= size):
            raise IndexError(f"an index is out of range of axis {axis} of size {size}")
        return np.take(data, indices, axis=axis)

    return run


# numpy checks arrays of indices before it uses them: others may write to a feed in between.
def gather_elements(op: Op) -> Kernel:
    """Return GatherElements."""
    axis = op.get("axis", 0)

    def run(data: Array, indices: Array) -> Array:
        part = tuple(
            slice(None) if i == axis % data.ndim else slice(0, size)
            for i, size in enumerate(indices.shape)
        )
        return np.take_along_axis(data[part], indices.copy(), axis)

    return run


def gather_nd(op: Op) -> Kernel:
    """Return GatherND."""
    batched = op.get("batch_dims", 0)

    def run(data: Array, indices: Array) -> Array:
        indices = indices.copy()  # see GatherElements
        depth = indices.shape[-1]
        if data.shape[:batched] != indices.shape[:batched]:
            raise ValueError(
                f"batches of data {list(data.shape)} and indices {list(indices.shape)} differ"
            )
        # Each batch axis is counted through, beside what the indices say of the axes behind it.
        lead = [
            np.arange(size).reshape(-1, *(1,) * (indices.ndim - 2 - axis))
            for axis, size in enumerate(data.shape[:batched])
        ]
        taken: Array = data[(*lead, *(indices[..., axis] for axis in range(depth)))]
        return taken

    return run


def concat(op: Op) -> Kernel:
    """Return Concat."""
    axis = op.attributes["axis"]
    return lambda *given: np.concatenate(given, axis)


def squeeze(op: Op) -> Kernel:
    """Return Squeeze; axes are an attribute or an input."""
    return lambda x, axes=None: np.squeeze(x, axes_of(op, axes))


def unsqueeze(op: Op) -> Kernel:
    """Return Unsqueeze; axes are an attribute or an input."""
    return lambda x, axes=None: np.expand_dims(x, axes_of(op, axes) or ())


def reshape(op: Op) -> Kernel:
    """Return Reshape."""
    zero_is_zero = bool(op.get("allowzero", 0))

    def run(x: Array, target: Array) -> Array:
        dims = target.reshape(-1).tolist()
        if not zero_is_zero:
            dims = [x.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
        if -1 in dims and x.size == 0:
            rest = int(np.prod([dim for dim in dims if dim != -1], dtype=np.int64))
            if rest == 0:
                dims[dims.index(-1)] = 0
        return x.reshape(dims)

    return run


def flatten(op: Op) -> Kernel:
    """Return Flatten."""
    axis = op.get("axis", 1)

    def run(x: Array) -> Array:
        at = axis + x.ndim if axis < 0 else axis
        return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))

    return run


def transpose(op: Op) -> Kernel:
    """Return Transpose."""
    perm = op.get("perm", None)
    return lambda x: np.transpose(x, perm)


def expand(_: Op) -> Kernel:
    """Return Expand."""

    def run(x: Array, target: Array) -> Array:
        shape = np.broadcast_shapes(x.shape, tuple(target.reshape(-1).tolist()))
        return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)

    return run


def tile(_: Op) -> Kernel:
    """Return Tile."""
    return lambda x, repeats: np.tile(x, repeats.tolist())


def slice_(_: Op) -> Kernel:
    """Return Slice."""

    def run(
        x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
    ) -> Array:
        part = [slice(None)] * x.ndim
        count = starts.size
        along = range(count) if axes is None else axes.tolist()
        by = [1] * count if steps is None else steps.tolist()
        for start, end, axis, step in zip(starts.tolist(), ends.tolist(), along, by, strict=True):
            size = x.shape[axis]
            if step < 0:
                # Past the beginning is no index from the end, which is what numpy takes it for.
                last = end + size if end < 0 else end
                first = min(max(start + size if start < 0 else start, 0), size - 1)
                part[axis] = slice(first, None if last < 0 else last, step)
                if first < 0:
                    part[axis] = slice(0, 0)
            else:
                part[axis] = slice(start, end, step)
        return x[tuple(part)]

    return run


def pad(op: Op) -> Kernel:
    """Return Pad."""
    mode: Any = _PAD_MODES[op.get("mode", "constant")]

    def run(x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
        along = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes.tolist()]
        listed = pads.tolist()
        pairs = [(0, 0)] * x.ndim
        for index, axis in enumerate(along):
            pairs[axis] = listed[index], listed[index + len(along)]
        # Negative pads cut off before the others add.
        kept = tuple(
            slice(max(0, -before), size - max(0, -after))
            for (before, after), size in zip(pairs, x.shape, strict=True)
        )
        added = [(max(0, before), max(0, after)) for before, after in pairs]
        options = (
            {}
            if mode != "constant"
            else {"constant_values": 0 if value is None else value.reshape(-1)[0]}
        )
        return np.pad(x[kept], added, mode, **options)

    return run


def split(op: Op) -> Kernel:
    """Return Split; sizes are an attribute or an input."""
    axis, count = op.get("axis", 0), len(op.outputs)

    def run(x: Array, sizes: Array | None = None) -> list[Array]:
        listed = op.get("split", None) if sizes is None else sizes.tolist()
        if listed is None:
            each = -(-x.shape[axis] // count)
            if each * (count - 1) > x.shape[axis]:
                raise ValueError(f"{x.shape[axis]} elements cannot be split into {count} parts")
            return [
                x.take(range(i * each, min((i + 1) * each, x.shape[axis])), axis)
                for i in range(count)
            ]
        if len(listed) != count or sum(listed) != x.shape[axis] or min(listed) < 0:
            raise ValueError(
                f"{x.shape[axis]} elements cannot be split into {count} parts of {listed}"
            )
        return np.split(x, np.cumsum(listed)[:-1], axis)

    return run


def trilu(op: Op) -> Kernel:
    """Return Trilu."""
    function = np.triu if op.get("upper", 1) else np.tril
    return lambda x, k=None: function(x, 0 if k is None else int(k.item()))
