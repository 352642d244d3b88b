"""Resize, Upsample, GridSample and RoiAlign: values between elements of a tensor, axis by axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import saturate_cast
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_roi_align import RoiAlign as OnnxRoiAlign

Array = np.ndarray[Any, Any]


class Resize(OpRun):
    """Begins with the first element where one is left of an axis, by `pytorch_half_pixel`.

    onnx's begins half an element before, and only where a scale results in exactly one.
    """

    def _run(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        antialias: int | None = None,
        axes: Sequence[int] | None = None,
        coordinate_transformation_mode: str | None = None,
        cubic_coeff_a: float | None = None,
        exclude_outside: int | None = None,
        extrapolation_value: float | None = None,
        keep_aspect_ratio_policy: str | None = None,
        mode: str | None = None,
        nearest_mode: str | None = None,
    ) -> tuple[Any, ...]:
        along = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
        lengths = [x.shape[axis] for axis in along]
        policy = keep_aspect_ratio_policy or "stretch"
        factors, counts = _factors(lengths, scales, sizes, policy)
        how, kind = coordinate_transformation_mode or "half_pixel", mode or "nearest"
        if kind == "nearest" and antialias:
            raise ValueError("antialias is for modes linear and cubic")
        result = x if kind == "nearest" else x.astype(np.float64)
        outside = np.zeros([1] * x.ndim, bool)
        for index, axis in enumerate(along):
            region = (0.0, 1.0)
            if how == "tf_crop_and_resize":
                if roi is None or roi.size != 2 * len(along):
                    raise ValueError("tf_crop_and_resize needs a roi of each axis")
                region = float(roi[index]), float(roi[index + len(along)])
            place = _places(how, counts[index], lengths[index], factors[index], region)
            shape = [-1 if other == axis else 1 for other in range(x.ndim)]
            if how == "tf_crop_and_resize":
                outside = outside | ((place < 0) | (place > lengths[index] - 1)).reshape(shape)
            if factors[index] == 1 and region == (0.0, 1.0) and counts[index] == lengths[index]:
                continue
            if kind == "nearest":
                nearest = _ROUNDED[nearest_mode or "round_prefer_floor"](place)
                kept = np.clip(nearest, 0, lengths[index] - 1).astype(np.int64)
                result = np.take(result, kept, axis)
                continue
            scale = min(factors[index], 1.0) if antialias else 1.0
            sharpness = -0.75 if cubic_coeff_a is None else cubic_coeff_a
            taps, weights = _weighted(place, kind, scale, sharpness)
            if exclude_outside:
                weights = np.where((taps >= 0) & (taps < lengths[index]), weights, 0)
            if exclude_outside or antialias:
                weights /= weights.sum(axis=0)
            kept = np.clip(taps, 0, lengths[index] - 1)
            total = np.zeros(
                [counts[index] if a == axis else n for a, n in enumerate(result.shape)]
            )
            for tap, weight in zip(kept, weights, strict=True):
                # What has no weight is not looked at: 0 times infinity is NaN.
                part = np.take(result, tap, axis) * weight.reshape(shape)
                total += np.where(weight.reshape(shape) == 0, 0, part)
            result = total
        if outside.any():
            result = np.where(outside, extrapolation_value or 0.0, result)
        if x.dtype.kind in "OSU":
            return (result,)
        return (saturate_cast(result, x.dtype) if result.dtype != x.dtype else result,)


def _factors(
    lengths: Sequence[int], scales: Array | None, sizes: Array | None, policy: str
) -> tuple[list[float], list[int]]:
    """Return the factor and the length of the result for each axis."""
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales]
        return factors, [
            math.floor(scale * length) for scale, length in zip(factors, lengths, strict=True)
        ]
    if sizes is None or not sizes.size:
        raise ValueError("neither scales nor sizes are given")
    counts = [int(size) for size in sizes]
    factors = [count / length for count, length in zip(counts, lengths, strict=True)]
    if policy == "stretch":
        return factors, counts
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"no keep_aspect_ratio_policy {policy!r}")
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(lengths), [math.floor(factor * length + 0.5) for length in lengths]


def _places(how: str, count: int, length: int, factor: float, region: tuple[float, float]) -> Array:
    """Return where the elements of the result lie in the operand, along an axis."""
    index = np.arange(count, dtype=np.float64)
    whole = factor * length  # before it was rounded to a count
    centred = (index + 0.5) / factor - 0.5 if factor else index
    if how == "half_pixel":
        return centred
    if how == "pytorch_half_pixel":
        return centred if count > 1 else np.zeros(count)
    if how == "half_pixel_symmetric":
        return centred + length / 2 * (1 - count / whole)
    if how == "asymmetric":
        return index / factor
    if how == "tf_half_pixel_for_nn":
        return (index + 0.5) / factor
    if how == "align_corners":
        return index * (length - 1) / (whole - 1) if count > 1 else np.zeros(count)
    if how != "tf_crop_and_resize":
        raise ValueError(f"no coordinate_transformation_mode {how!r}")
    first, last = region
    if count == 1:
        return np.full(count, (first + last) * (length - 1) / 2)
    return (first + index * (last - first) / (whole - 1)) * (length - 1)


_ROUNDED: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "round_prefer_floor": lambda place: np.ceil(place - 0.5),
        "round_prefer_ceil": lambda place: np.floor(place + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
)


def _weighted(place: Array, kind: str, scale: float, sharpness: float) -> tuple[Array, Array]:
    """Return the indices of elements around places, and their weights, both [taps, count].

    Args:
        place: where the results lie.
        kind: ``linear`` or ``cubic``.
        scale: how far the kernel is stretched: below 1 where it is to smooth.
        sharpness: the parameter of the cubic kernel.
    """
    reach = {"linear": 1, "cubic": 2}.get(kind)
    if reach is None:
        raise ValueError(f"no mode {kind!r}")
    first = math.floor(-reach / scale) + 1
    offsets = np.arange(first, 2 - first)[:, None]
    taps = np.floor(place).astype(np.int64) + offsets
    distance = np.abs(taps - place) * scale
    if kind == "linear":
        return taps, np.clip(1 - distance, 0, 1)
    a = sharpness
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return taps, np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


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
