"""Sizes and paddings of kernel windows that slide over an image: pools and convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class KernelWindow:
    """A kernel window over images of some size; one entry for each spatial axis.

    Attributes:
        kernel: how many elements it has.
        strides: how far it moves.
        dilations: how far its elements are apart.
        pads: how much padding the images get before their first elements, then after the last.
        counts: how many places it has.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        auto_pad: str | None = None,
        *,
        ceil: bool = False,
    ) -> KernelWindow:
        """Create the kernel window of a node.

        Args:
            sizes: of the images.
            kernel: as in `KernelWindow`.
            strides: as in `KernelWindow`; None for ones.
            dilations: as in `KernelWindow`; None for ones.
            pads: before each axis, then after each; None for zeros.
            auto_pad: of the node; the padding that it implies replaces `pads`.
            ceil: whether a last place counts that is in part outside.

        Raises:
            ValueError: a kernel window that is larger than its image.
        """
        rank = len(sizes)
        strides = tuple(strides or (1,) * rank)
        dilations = tuple(dilations or (1,) * rank)
        pads = tuple(pads or (0,) * 2 * rank)
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        if auto_pad == "VALID":
            pads = (0,) * 2 * rank
        elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            rows = zip(sizes, extents, strides, strict=True)
            needed = [max(0, (-(-n // s) - 1) * s + extent - n) for n, extent, s in rows]
            more = [(total + 1) // 2 for total in needed]
            less = [total // 2 for total in needed]
            pads = (*less, *more) if auto_pad == "SAME_UPPER" else (*more, *less)
        counts = []
        for axis, (size, extent, stride) in enumerate(zip(sizes, extents, strides, strict=True)):
            room = size + pads[axis] + pads[rank + axis] - extent
            if room < 0:
                raise ValueError(f"a kernel window of {extent} over {extent + room} elements")
            count = (-(-room // stride) if ceil else room // stride) + 1
            if ceil and (count - 1) * stride >= size + pads[axis]:
                count -= 1  # it would begin in the padding at the end
            counts.append(count)
        return cls(tuple(kernel), strides, dilations, pads, tuple(counts))

    @property
    def before(self) -> tuple[int, ...]:
        """How much padding the images get before their first element."""
        return self.pads[: len(self.kernel)]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Return the indices of the kernel's elements."""
        return itertools.product(*(range(size) for size in self.kernel))

    def padded(self, x: Array, fill: Any) -> Array:
        """Return `x` [N, C, *sizes] padded to what all places of the kernel window reach."""
        pairs = []
        for axis, size in enumerate(x.shape[2:]):
            last = (self.counts[axis] - 1) * self.strides[axis]
            reach = last + (self.kernel[axis] - 1) * self.dilations[axis] + 1
            pairs.append((self.before[axis], max(0, reach - size - self.before[axis])))
        cut: list[Any] = [..., *(slice(max(0, -before), None) for before, _ in pairs)]
        kept = x[tuple(cut)]
        pairs = [(max(0, before), after) for before, after in pairs]
        if not any(map(any, pairs)):
            return np.asarray(kept)
        return np.asarray(np.pad(kept, [(0, 0), (0, 0), *pairs], constant_values=fill))

    def view(self, padded: Array, tap: Sequence[int]) -> Array:
        """Return what one element of the kernel meets, [N, C, *counts], as a view."""
        parts: list[Any] = [...]
        for index, dilation, stride, count in zip(
            tap, self.dilations, self.strides, self.counts, strict=True
        ):
            start = index * dilation
            parts.append(slice(start, start + (count - 1) * stride + 1, stride))
        return np.asarray(padded[tuple(parts)])
