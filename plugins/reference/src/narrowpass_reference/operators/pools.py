"""MaxPool, LpPool and the pools of whole images, at any rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from narrowpass_reference.operators.kernel_windows import KernelWindow

Array = np.ndarray[Any, Any]


class MaxPool(OpRun):
    """Pads as `pads` and `auto_pad` say, at any rank; onnx's mixes axes up.

    NaN is greater than all numbers. A place of the kernel window that is all padding results in
    the least number, and the index -1.
    """

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        sizes = x.shape[2:]
        kernel_window = KernelWindow.of(
            sizes, kernel_shape, strides, dilations, pads, auto_pad, ceil=bool(ceil_mode)
        )
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        shape = (*x.shape[:2], *kernel_window.counts)
        best = np.full(shape, least, x.dtype)
        padded = kernel_window.padded(x, least)
        if not any(self.output[1:]):
            for tap in kernel_window.taps():
                best = np.maximum(best, kernel_window.view(padded, tap))
            return (best,)
        # Where storage_order is 1, the last axis is the one whose indices are the farthest apart.
        places = np.arange(math.prod(sizes)).reshape(sizes[::-1] if storage_order else sizes)
        places = places.transpose() if storage_order else places
        positions = kernel_window.padded(places[None, None], -1)
        found = np.full(shape, -1)
        for tap in kernel_window.taps():
            value, place = kernel_window.view(padded, tap), kernel_window.view(positions, tap)
            better = (value > best) | ((value != value) & (best == best)) | (found < 0)
            better &= place >= 0
            best = np.where(better, value, best)
            found = np.where(better, place, found)
        image = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(sizes))
        return (best, np.where(found < 0, -1, found + image * math.prod(sizes)))


class GlobalMaxPool(OpRun):
    """Keeps batch and channels at any rank; onnx's does for images of two axes only."""

    def _run(self, x: Array) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """The p-norm of each channel, which onnx's evaluator does not know."""

    def _run(self, x: Array, p: float = 2) -> tuple[Any, ...]:
        axes = tuple(range(2, x.ndim))
        return (norm(x, p, axes).astype(x.dtype),)


class LpPool(OpRun):
    """Begins with the first element where `ceil_mode` is given; onnx's moves the window."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        p: float = 2,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        kernel_window = KernelWindow.of(
            x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil=bool(ceil_mode)
        )
        padded = kernel_window.padded(x, 0)
        wide = np.float64 if x.dtype == np.float64 else np.float32
        total = np.zeros((*x.shape[:2], *kernel_window.counts), wide)
        for tap in kernel_window.taps():
            total += np.abs(kernel_window.view(padded, tap).astype(wide)) ** p
        return ((total ** (1 / p)).astype(x.dtype),)


class AveragePool(OpRun):
    """Keeps NaN, takes `auto_pad` with `ceil_mode`, and small kernels; onnx's is slow besides.

    Places of a kernel window beyond the padding at the end, with `ceil_mode`, do not count.
    """

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        sizes = x.shape[2:]
        kernel_window = KernelWindow.of(
            sizes, kernel_shape, strides, dilations, pads, auto_pad, ceil=bool(ceil_mode)
        )
        padded = kernel_window.padded(x, 0)
        counted = kernel_window.padded(np.ones((1, 1, *sizes), np.float32), 0)
        if count_include_pad:
            after = kernel_window.pads[len(sizes) :]
            inside: list[Any] = [...]
            inside += map(slice, map(sum, zip(kernel_window.before, sizes, after, strict=True)))
            counted[tuple(inside)] = 1
        wide = np.float64 if x.dtype == np.float64 else np.float32
        total = np.zeros((*x.shape[:2], *kernel_window.counts), wide)
        count = np.zeros((1, 1, *kernel_window.counts), wide)
        for tap in kernel_window.taps():
            total += kernel_window.view(padded, tap)
            count += kernel_window.view(counted, tap)
        return ((total / np.maximum(count, 1)).astype(x.dtype),)


class LpNormalization(OpRun):
    """Takes absolute values for p = 1 also; onnx's does not."""

    def _run(self, x: Array, axis: int = -1, p: int = 2) -> tuple[Any, ...]:
        length = norm(x, p, (axis,))
        wide = x.astype(length.dtype, copy=False)
        return (np.where(length == 0, 0, wide / length).astype(x.dtype),)


def norm(x: Array, p: float, axes: tuple[int, ...]) -> Array:
    """Return the p-norm along axes, which stay with size 1; of narrow floats in float32."""
    size = np.abs(x.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False))
    if p == 1:
        return np.asarray(size.sum(axis=axes, keepdims=True))
    if p == 2:
        return np.asarray(np.sqrt(np.square(size).sum(axis=axes, keepdims=True)))
    return np.asarray((size**p).sum(axis=axes, keepdims=True) ** (1 / p))
