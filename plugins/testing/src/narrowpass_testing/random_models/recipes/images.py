"""Operators on images and boxes: resizing, sampling, regions."""

from __future__ import annotations

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes

TABLE = Recipes()


@TABLE.operators("Resize")
def _resize(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: 0 not in a.shape)
    mode = d.pick("nearest", "nearest", "linear", "cubic")
    if x.ndim != 4 and mode == "cubic":
        mode = "linear"
    d.set("mode", mode)
    scales = [1.0] * x.ndim
    for axis in range(max(x.ndim - 2, 0), x.ndim):
        scales[axis] = d.pick(1.0, 2.0, 0.5, 1.5, 3.0)
    sizes = [max(int(n * s), 1) for n, s in zip(x.shape, scales, strict=True)]
    if d.schema.since_version < 11:
        d.operand(np.array(scales, np.float32))
        return
    if d.schema.since_version >= 13 and d.chance(0.8):
        d.none()
    else:
        d.operand(np.zeros(2 * x.ndim, np.float32))
    if d.chance(0.6) and all(int(n * s) for n, s in zip(x.shape, scales, strict=True)):
        d.operand(np.array(scales, np.float32))
    else:
        if d.schema.since_version >= 13:
            d.none()
        else:
            d.operand(np.array([], np.float32))
        d.operand(np.array(sizes))
    modes = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    if d.schema.since_version >= 19:
        modes.append("half_pixel_symmetric")
    d.set("coordinate_transformation_mode", d.pick(*modes))
    if mode == "nearest":
        d.maybe("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        d.maybe("cubic_coeff_a", -0.75, -0.5)
        d.maybe("exclude_outside", 0, 1)
    if mode != "nearest" and d.chance(0.2):
        d.set("antialias", 1)


@TABLE.operators("GridSample")
def _grid_sample(d: Draft) -> None:
    x = d.take(4, 4, fits=lambda a: 0 not in a.shape)
    grid = d.numbers.uniform(-1.3, 1.3, (x.shape[0], d.pick(1, 3), d.pick(1, 4), 2))
    d.operand(grid.astype(d.bind("float")) if "float" in d.types() else grid, constant=0.3)
    newer = d.schema.since_version >= 20
    d.maybe(
        "mode", *(("linear", "nearest", "cubic") if newer else ("bilinear", "nearest", "bicubic"))
    )
    d.maybe("padding_mode", "zeros", "border", "reflection")
    d.maybe("align_corners", 0, 1)


@TABLE.operators("AffineGrid")
def _affine_grid(d: Draft) -> None:
    n = d.pick(1, 2)
    spatial = d.pick((2, 3), (4, 1), (2, 2, 3))
    d.draw((n, len(spatial), len(spatial) + 1), constant=0.2)
    d.ints([n, 2, *spatial])
    d.maybe("align_corners", 0, 1)


@TABLE.operators("RoiAlign")
def _roi_align(d: Draft) -> None:
    x = d.take(4, 4, fits=lambda a: 0 not in a.shape)
    count = d.pick(1, 2, 3)
    corners = np.sort(d.numbers.uniform(0, 6, (count, 2, 2)), axis=1).reshape(count, 4)
    d.operand(corners.astype(x.dtype), constant=0.3)
    d.operand(d.numbers.integers(0, x.shape[0], count))
    d.set("output_height", d.pick(1, 2, 3))
    d.set("output_width", d.pick(1, 2, 3))
    d.maybe("mode", "avg", "max")
    d.maybe("sampling_ratio", 0, 1, 2)
    d.maybe("spatial_scale", 0.5, 1.0)
    d.maybe("coordinate_transformation_mode", "half_pixel", "output_half_pixel")


@TABLE.operators("MaxRoiPool")
def _max_roi_pool(d: Draft) -> None:
    x = d.take(4, 4, fits=lambda a: 0 not in a.shape)
    corners = np.sort(d.numbers.integers(0, 5, (2, 2, 2)), axis=1).reshape(2, 4)
    batch = d.numbers.integers(0, x.shape[0], (2, 1))
    d.operand(np.concatenate([batch, corners], 1).astype(x.dtype))
    d.set("pooled_shape", [d.pick(1, 2), d.pick(1, 2)])


@TABLE.operators("NonMaxSuppression")
def _suppression(d: Draft) -> None:
    batch, count, classes = d.pick(1, 2), d.pick(1, 4, 8), d.pick(1, 2)
    corners = np.sort(d.numbers.random((batch, count, 2, 2)), axis=2).reshape(batch, count, 4)
    d.operand(corners.astype(np.float32), constant=0.1)
    scores = d.numbers.permutation(batch * classes * count) / (batch * classes * count)
    d.operand(scores.reshape(batch, classes, count).astype(np.float32), constant=0.1)
    d.operand(np.array([d.pick(1, 3)]))
    if d.chance(0.7):
        d.operand(np.array([d.pick(0.2, 0.5)], np.float32))
        if d.chance(0.6):
            d.operand(np.array([0.31], np.float32))
    d.maybe("center_point_box", 0, 1)


@TABLE.operators("Col2Im")
def _col2im(d: Draft) -> None:
    image, block = d.pick((4, 4), (5, 3)), d.pick((1, 1), (2, 2), (3, 1))
    strides = d.pick((1, 1), (2, 1))
    places = [(size - b) // s + 1 for size, b, s in zip(image, block, strides, strict=True)]
    d.draw((d.pick(1, 2), 2 * int(np.prod(block)), int(np.prod(places))), constant=0.1)
    d.ints(image)
    d.ints(block)
    d.set("strides", strides)
