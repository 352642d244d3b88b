"""Resize and Upsample of images: bilinear and nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import NHWC, Builder
from narrowpass_xnn_cpu.lower.movement.axes import check_float_or_int8
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.xnnpack.movement import XnnResizeBilinear

_LINEAR = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"}


@dataclass(frozen=True)
class TargetSize:
    """The height and width of a resized image.

    Attributes:
        sizes: height and width; empty where they follow from `scales`.
        scales: of height and width.
        exact: whether scaled sizes must be whole numbers.
    """

    sizes: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    exact: bool = True

    def of(self, shape: Shape) -> tuple[int, int]:
        """Return height and width for an image [N, H, W, C].

        Raises:
            BackendError: scales that leave a fraction of a pixel.
        """
        if self.sizes:
            return self.sizes[0], self.sizes[1]
        scaled = [dim * scale for dim, scale in zip(shape[1:3], self.scales, strict=True)]
        height, width = map(int, scaled)
        if self.exact and [height, width] != scaled:
            scales = list(self.scales)
            raise BackendError(f"{list(shape)} scaled by {scales} leaves a fraction of a pixel")
        return height, width


@record
class ResizeLinear(Computation):
    """Bilinear interpolation of [N, H, W, C].

    Attributes:
        mode: how coordinates are transformed.
        target: the size of the result.
    """

    mnemonic = "resize_linear"
    kernel = "xnn resize bilinear"
    mode: str
    target: TargetSize

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        height, width = self.target.of(shape)
        result = (shape[0], height, width, shape[3])
        if not elements(result):
            return Run(result)
        if not elements(shape):
            raise BackendError("nothing can be interpolated from an empty image")
        if (height, width) == shape[1:3]:
            return Run(result, view=0)
        operator = XnnResizeBilinear(height, width, self.mode)
        operator.reshape(shape, sizing.pool)
        return Run(result, operator.call, operator)


@record
class ResizeNearest(Computation):
    """Each pixel of [N, H, W, C] repeated in both directions.

    Attributes:
        target: the size of the result.
    """

    mnemonic = "resize_nearest"
    kernel = "copy"
    target: TargetSize

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        n, h, w, c = shapes[0]
        height, width = self.target.of(shapes[0])
        result = (n, height, width, c)
        if not elements(result):
            return Run(result)
        if h == 0 or w == 0 or height % h or width % w:
            raise BackendError(f"{h} x {w} cannot be repeated to {height} x {width}")
        sizes = (n, h, height // h, w, width // w, c)
        strides = (h * w * c, w * c, 0, c, 0, 1)
        itemsize = step.op.output.dtype.itemsize
        params = kernels.copy(sizes, strides, kernels.dense_strides(sizes), itemsize)
        return Run(result, "NP_COPY", params=params)


def _sizes_and_scales(op: Op) -> tuple[int | None, int | None]:
    """Return the indices of the inputs that hold sizes and scales."""
    if op.kind == "Upsample":
        return None, 1 if op.version >= 9 else None
    if op.version < 11:
        return None, 1
    return 3, 2


def _scales(op: Op, facts: Facts) -> list[float] | None:
    """Return the constant scale of each axis; None if there are none."""
    if op.kind == "Upsample" and op.version < 9:
        return list(op.get("scales", ())) or None
    _, at = _sizes_and_scales(op)
    array = facts.constant(op.input(at)) if at is not None else None
    return None if array is None or not array.size else [float(s) for s in array.reshape(-1)]


def _check_resize(op: Op, facts: Facts) -> str | None:
    nearest = op.get("mode", "nearest") == "nearest"
    reason = check_float_or_int8(op, facts) if nearest else check_floats(op, facts)
    if reason:
        return reason
    if facts.rank(op.input(0)) != 4:
        return "only images are resized natively"
    if op.get("axes", None) is not None or op.get("antialias", 0):
        return "axes and antialias are not covered"
    if op.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keeping the aspect ratio is not covered"
    scales = _scales(op, facts)
    mode = op.get("mode", "nearest")
    legacy = op.kind == "Upsample" or op.version < 11
    how = "asymmetric" if legacy else op.get("coordinate_transformation_mode", "half_pixel")
    if scales is None:
        at, _ = _sizes_and_scales(op)
        sizes = facts.constant(op.input(at)) if at is not None else None
        dims = facts.dims(op.input(0)) or ()
        if sizes is None or sizes.size != 4:
            return "its sizes or scales are not constant"
        if tuple(int(s) for s in sizes[:2]) != dims[:2]:
            return "it resizes batches or channels, or their sizes are not known"
    elif len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        return "it resizes batches or channels"
    if mode == "linear":
        if how not in _LINEAR:
            return f"coordinates by {how} have no kernel"
        if how != "align_corners" and scales is not None and not _exact(op, facts, scales):
            return "scales that leave a fraction of a pixel have no kernel"
        if how == "pytorch_half_pixel" and _may_become_one(op, facts, scales):
            return "one pixel by pytorch_half_pixel, which is the first one, has no kernel"
        return None
    if mode == "nearest":
        return _check_nearest(op, facts, how, scales)
    return f"interpolation by {mode} has no kernel"


def _exact(op: Op, facts: Facts, scales: Sequence[float]) -> bool:
    """Return whether scaled sizes are whole numbers: XNNPACK resizes by sizes, ONNX by scales."""
    dims = (facts.dims(op.input(0)) or (None,) * 4)[2:]
    for dim, scale in zip(dims, scales[2:], strict=True):
        if scale >= 1 and float(scale).is_integer():
            continue
        if not isinstance(dim, int) or not float(dim * scale).is_integer():
            return False
    return True


def _may_become_one(op: Op, facts: Facts, scales: Sequence[float] | None) -> bool:
    """Return whether a height or width other than 1 may become 1."""
    dims = (facts.dims(op.input(0)) or (None,) * 4)[2:]
    if scales is None:
        sizes = [int(size) for size in facts.array(op.input(3))[2:]]
    else:
        # A factor of 1 or more yields 1 from 1 only; sizes with other factors are known.
        sizes = [
            0 if scale >= 1 or not isinstance(dim, int) else int(dim * scale)
            for dim, scale in zip(dims, scales[2:], strict=True)
        ]
    return any(size == 1 and dim != 1 for size, dim in zip(sizes, dims, strict=True))


def _check_nearest(op: Op, facts: Facts, how: str, scales: Sequence[float] | None) -> str | None:
    if scales is None:
        sizes = facts.array(op.input(3))
        dims = facts.dims(op.input(0)) or ()
        if not all(isinstance(d, int) and d for d in dims):
            return "sizes of its input are not known"
        factors = [int(s) / int(d or 1) for s, d in zip(sizes, dims, strict=True)]
    else:
        factors = list(scales)
    if any(factor < 1 or not float(factor).is_integer() for factor in factors):
        return "nearest pixels have a kernel for whole factors only"
    rounding = op.get("nearest_mode", "round_prefer_floor")
    legacy = op.kind == "Upsample" or op.version < 11
    # For integer factors all of these repeat each pixel as often as the factor.
    if legacy or (how == "asymmetric" and rounding == "floor"):
        return None
    if how in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round"):
        return None
    return f"coordinates by {how} with rounding by {rounding} have no kernel"


def _resize(op: Op, builder: Builder) -> None:
    facts = builder.facts
    scales = _scales(op, facts)
    at, _ = _sizes_and_scales(op)
    sizes = None if scales is not None or at is None else facts.constant(op.input(at))
    legacy = op.kind == "Upsample" or op.version < 11
    how = "asymmetric" if legacy else op.get("coordinate_transformation_mode", "half_pixel")

    if scales is None:
        height, width = (0, 0) if sizes is None else sizes[2:]
        target = TargetSize((int(height), int(width)))
    else:
        target = TargetSize(scales=tuple(scales[2:]), exact=how != "align_corners")
    resize: Computation = ResizeNearest(target)
    if op.get("mode", "nearest") == "linear":
        how = "half_pixel" if how == "pytorch_half_pixel" else how
        resize = ResizeLinear(how, target)
    builder.compute(resize, [builder.slot_of(op.required(0), NHWC)], op.output, NHWC)


RULES: tuple[Rule, ...] = (*rules("Resize", "Upsample", lower=_resize, check=_check_resize),)
