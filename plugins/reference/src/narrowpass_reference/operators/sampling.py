"""GridSample, RoiAlign and Upsample: values between the elements of an image, axis by axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_roi_align import RoiAlign as OnnxRoiAlign

Array = np.ndarray[Any, Any]

_OLD_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


class GridSample(OpRun):
    """Knows the names of modes of operator sets 16 to 19; onnx's knows the later ones only."""

    def _run(
        self,
        x: Array,
        grid: Array,
        align_corners: int | None = None,
        mode: str | None = None,
        padding_mode: str | None = None,
    ) -> tuple[Any, ...]:
        kind = _OLD_NAMES.get(mode or "linear", mode or "linear")
        padding = padding_mode or "zeros"
        wide = _wide(grid.dtype)
        grid = grid.astype(wide, copy=False)
        axes = []
        for axis, size in enumerate(x.shape[2:]):
            place = grid[..., grid.shape[-1] - 1 - axis]
            place = ((place + 1) * (size - 1 if align_corners else size) - (not align_corners)) / 2
            taps = [
                (*_inside(index, size, padding, aligned=bool(align_corners)), weight)
                for index, weight in _taps(place, kind)
            ]
            axes.append(taps)
        batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (grid.ndim - 2))
        if kind == "nearest":
            found, here = _gathered(x, batch, [taps[0] for taps in axes])
            return (np.where(here, found, np.zeros((), x.dtype)),)
        result = np.zeros((*grid.shape[:-1], x.shape[1]), _wide(x.dtype))
        for chosen in itertools.product(*axes):
            found, here = _gathered(x, batch, chosen)
            weight = np.prod([w for _, _, w in chosen], axis=0)
            result += np.moveaxis(np.where(here, found, 0), 1, -1) * weight[..., None]
        return (np.moveaxis(result, -1, 1).astype(x.dtype),)


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float32 if dtype.itemsize <= 4 and dtype.kind not in "iu" else np.float64


def _taps(place: Array, kind: str) -> list[tuple[Array, Array]]:
    """Return the indices of the elements around places, and the weights of these."""
    if kind == "nearest":
        return [(np.rint(place), np.ones_like(place))]
    first = np.floor(place)
    t = place - first
    if kind == "linear":
        return [(first, 1 - t), (first + 1, t)]
    if kind == "cubic":
        return [
            (first - 1, _far(t + 1)),
            (first, _near(t)),
            (first + 1, _near(1 - t)),
            (first + 2, _far(2 - t)),
        ]
    raise ValueError(f"no mode {kind!r}")


_SHARPNESS = -0.75
"""The parameter of the cubic kernel, of which those two are the parts."""


def _near(t: Array) -> Array:
    return ((_SHARPNESS + 2) * t - (_SHARPNESS + 3)) * t * t + 1


def _far(t: Array) -> Array:
    return ((_SHARPNESS * t - 5 * _SHARPNESS) * t + 8 * _SHARPNESS) * t - 4 * _SHARPNESS


def _inside(index: Array, size: int, padding: str, *, aligned: bool) -> tuple[Array, Array]:
    """Return indices within 0 to `size` - 1, and which of them count."""
    everywhere = np.ones(index.shape, bool)
    if padding == "zeros":
        everywhere = (index >= 0) & (index < size)
    elif padding == "reflection":
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        if high > low:
            around = np.abs(index - low) % (2 * (high - low))
            index = low + np.minimum(around, 2 * (high - low) - around)
    elif padding != "border":
        raise ValueError(f"no padding mode {padding!r}")
    # NaN is no place: it counts as the first element.
    kept = np.clip(np.nan_to_num(index, nan=0.0), 0, max(0, size - 1))
    return kept.astype(np.int64), everywhere


def _gathered(
    x: Array, batch: Array, chosen: Sequence[tuple[Array, Array, Array]]
) -> tuple[Array, Array]:
    """Return the elements [N, C, *out] at an index for each axis, and which count, [N, 1, *out]."""
    place: tuple[Any, ...] = (batch, slice(None), *(index for index, _, _ in chosen))
    found = x[place]
    here = np.all([valid for _, valid, _ in chosen], axis=0)
    return np.moveaxis(found, -1, 1), here[:, None]


class RoiAlign(OpRun):
    """Before opset 16: coordinates stay where they are; onnx's moves them by half a pixel."""

    def _run(self, *inputs: Array, **_: Any) -> tuple[Any, ...]:
        node = onnx.NodeProto()
        node.CopyFrom(self.onnx_node)
        mode = onnx.helper.make_attribute("coordinate_transformation_mode", "output_half_pixel")
        node.attribute.append(mode)
        later: Any = OnnxRoiAlign(node, self.run_params)
        return tuple(later.run(*inputs))


class Upsample(OpRun):
    """Knows linear interpolation and scales that are not whole; onnx's knows neither."""

    def _run(
        self,
        x: Array,
        scales: Array | Sequence[float] | None = None,
        mode: str | None = None,
        **_: Any,  # scales, where they are an attribute
    ) -> tuple[Any, ...]:
        if scales is None:
            raise ValueError("no scales")
        result = x if mode == "nearest" else x.astype(_wide(x.dtype), copy=False)
        for axis, scale in enumerate(np.asarray(scales, np.float32)):
            if scale == 1:
                continue
            size = x.shape[axis]
            place = np.arange(int(np.floor(size * scale)), dtype=np.float32) / scale
            first = np.minimum(np.floor(place).astype(np.int64), size - 1)
            if mode == "nearest":
                result = np.take(result, first, axis)
                continue
            weight = (np.minimum(place, size - 1) - first).astype(result.dtype)
            weight = weight.reshape(-1, *(1,) * (x.ndim - axis - 1))
            one, other = (
                np.take(result, index, axis) for index in (first, np.minimum(first + 1, size - 1))
            )
            result = one + (other - one) * weight
        return (result.astype(x.dtype, copy=False),)
