"""Operators whose operands onnx's evaluator wants in fewer shapes or types than they may have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

Array = np.ndarray[Any, Any]


class Mean(OpRun):
    """Broadcasts its operands with each other; onnx's keeps the first one's shape."""

    def _run(self, *given: Array) -> tuple[Any, ...]:
        total = given[0].astype(_wide(given[0]))
        for other in given[1:]:
            total = total + other
        return (np.asarray(np.true_divide(total, len(given)), given[0].dtype),)


class Softsign(OpRun):
    """Takes scalars; onnx's writes into what numpy returns for one, which is no array."""

    def _run(self, x: Array) -> tuple[Any, ...]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class ReduceLogSum(OpRun):
    """Takes integers, which the operator has up to operator set 27: results are cut off."""

    def _run(
        self,
        data: Array,
        axes: Array | Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> tuple[Any, ...]:
        along = _along(data, axes)
        wide = data.astype(_wide(data))
        if not along and noop_with_empty_axes:
            total = wide
        else:
            total = wide.sum(axis=along or None, keepdims=bool(keepdims))
        with np.errstate(divide="ignore", invalid="ignore"):
            return (_narrow(np.log(total), data.dtype),)


class ReduceLogSumExp(OpRun):
    """Takes scalars and integers; elements that are infinite count as what they are."""

    def _run(
        self,
        data: Array,
        axes: Array | Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> tuple[Any, ...]:
        along = _along(data, axes)
        if not along and noop_with_empty_axes:
            return (data.copy(),)
        wide = data.astype(_wide(data))
        axis = along or tuple(range(data.ndim))
        most = wide.max(axis=axis, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(most), most, 0)
        total = np.exp(wide - shift).sum(axis=axis, keepdims=True)
        with np.errstate(divide="ignore"):
            result = np.log(total) + shift
        return (_narrow(result if keepdims else result.squeeze(axis), data.dtype),)


def _wide(data: Array) -> type[np.floating[Any]]:
    """The type to compute in: accumulators of narrow floats are float32."""
    return np.float64 if data.dtype.kind in "iu" or data.dtype == np.float64 else np.float32


def _narrow(result: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        result = np.clip(np.trunc(result), limits.min, limits.max)
    return np.asarray(result).astype(dtype)


def _along(data: Array, axes: Array | Sequence[int] | None) -> tuple[int, ...]:
    return () if axes is None else tuple(np.asarray(axes).reshape(-1).tolist())


class Squeeze(OpRun):
    """Takes axes in any order; onnx's removes one after the other, as if they were sorted."""

    def _run(self, x: Array, axes: Array | Sequence[int] | None = None) -> tuple[Any, ...]:
        # An attribute is a list, empty where it is not given; an input may hold no axes.
        if axes is None or (isinstance(axes, list) and not axes):
            return (np.squeeze(x),)
        return (np.squeeze(x, tuple(np.asarray(axes).reshape(-1).tolist())),)


class Unsqueeze(OpRun):
    """Takes axes in any order, as Squeeze does."""

    def _run(self, x: Array, axes: Array | Sequence[int]) -> tuple[Any, ...]:
        return (np.expand_dims(x, tuple(np.asarray(axes).reshape(-1).tolist())),)


class Slice(OpRun):
    """With operands. A negative step from before an axis takes its first element, not nothing."""

    def _run(
        self,
        data: Array,
        starts: Array,
        ends: Array,
        axes: Array | None = None,
        steps: Array | None = None,
    ) -> tuple[Any, ...]:
        first, last = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
        along = range(len(first)) if axes is None else axes.reshape(-1).tolist()
        by = [1] * len(first) if steps is None else steps.reshape(-1).tolist()
        places = [slice(None)] * data.ndim
        for start, end, axis, step in zip(first, last, along, by, strict=True):
            begin = max(start, -data.shape[axis]) if step < 0 else start
            places[axis] = slice(begin, end, step)
        return (data[tuple(places)],)


class OneHot(OpRun):
    """Takes both values as they are; onnx's multiplies their difference, which rounds."""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int = -1) -> tuple[Any, ...]:
        count = int(depth.reshape(-1)[0])
        rank = indices.ndim + 1
        places = np.arange(count).reshape([-1 if a == axis % rank else 1 for a in range(rank)])
        found = np.expand_dims(indices, axis % rank)
        hot = np.where(found < 0, found + count, found) == places
        return (np.where(hot, values[1:], values[:1]),)


class NonMaxSuppression(OpRun):
    """Takes limits that are scalars or left out; onnx's wants each with one dimension."""

    def _run(
        self,
        boxes: Array,
        scores: Array,
        most: Array | None = None,
        overlap: Array | None = None,
        least: Array | None = None,
        center_point_box: int = 0,
    ) -> tuple[Any, ...]:
        count = 0 if most is None or not most.size else int(most.reshape(-1)[0])
        if count <= 0:
            return (np.zeros((0, 3), np.int64),)
        limits = [
            np.zeros(0 if optional else 1, np.float32) if given is None else given.reshape(-1)
            for given, optional in ((overlap, False), (least, True))
        ]
        found = load_op("", "NonMaxSuppression").eval(
            boxes, scores, np.array([count]), *limits, center_point_box=center_point_box
        )
        return (found,)


class GatherElements(OpRun):
    """Takes indices with fewer elements than the data along other axes, and axes of any size."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Any, ...]:
        at = axis % data.ndim
        part = tuple(
            slice(None) if i == at else slice(0, size) for i, size in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[part], indices.astype(np.int64), at),)


class GatherND(OpRun):
    """Takes data and indices without elements; onnx's cannot reshape them."""

    def _run(self, data: Array, indices: Array, batch_dims: int = 0) -> tuple[Any, ...]:
        depth = indices.shape[-1]
        lead, rest = indices.shape[:-1], data.shape[batch_dims + depth :]
        if indices.shape[:batch_dims] != data.shape[:batch_dims]:
            raise ValueError(
                f"batches of data {list(data.shape)} and indices {list(indices.shape)} differ"
            )
        batches = math.prod(data.shape[:batch_dims])
        rows = math.prod(lead[batch_dims:])
        flat = data.reshape(batches, *data.shape[batch_dims:])
        columns = indices.reshape(batches, rows, depth)
        chosen = flat[(np.arange(batches)[:, None], *np.moveaxis(columns, -1, 0))]
        return (chosen.reshape((*lead, *rest)),)


class MeanVarianceNormalization(OpRun):
    """Takes narrow floats; in onnx's function the constants are float32, whatever the input is."""

    def _run(self, x: Array, axes: Sequence[int] | None = None) -> tuple[Any, ...]:
        wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
        along = (0, 2, 3) if axes is None else tuple(axes)
        mean = wide.mean(axis=along, keepdims=True)
        centred = wide - mean
        spread = np.sqrt(np.square(centred).mean(axis=along, keepdims=True))
        return (np.asarray(centred / (spread + wide.dtype.type(1e-9)), x.dtype),)


class LogSoftmax(OpRun):
    """Stays finite where a softmax comes out as 0, of which onnx's takes the logarithm."""

    def _run(self, x: Array, axis: int = -1) -> tuple[Any, ...]:
        return (log_softmax(x, axis),)


def log_softmax(x: Array, axis: int) -> Array:
    """Return the logarithms of a softmax; of narrow floats by way of float32."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    shifted = wide - wide.max(axis=axis, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total), x.dtype)
