"""Checks of shapes, clipping ranges and types, before numbers go to C."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight

Shape = tuple[int, ...]
Range = tuple[float, float]
"""The clipping range of an output; infinite for none."""

UNBOUNDED: Range = (-math.inf, math.inf)
MAX_DIMS = 6
_MOST_ELEMENTS = 1 << 46


def checked_shape(shape: Sequence[int], rank: int | None = None) -> Shape:
    """Check a shape: its rank, and that dimensions are positive and do not overflow in C."""
    dims = tuple(int(dim) for dim in shape)
    if rank is not None and len(dims) != rank:
        raise BackendError(f"a shape of rank {rank} is expected, not {list(dims)}")
    if len(dims) > MAX_DIMS:
        raise BackendError(f"XNNPACK takes {MAX_DIMS} dimensions at most, not {list(dims)}")
    if any(dim < 1 for dim in dims) or math.prod(dims) > _MOST_ELEMENTS:
        raise BackendError(f"a tensor of shape {list(dims)} cannot be computed with")
    return dims


def checked_range(limits: Range) -> Range:
    """Check a clipping range: no NaN, and not empty."""
    low, high = limits
    if math.isnan(low) or math.isnan(high) or low > high:
        raise BackendError(f"outputs cannot be clamped to [{low}, {high}]")
    return low, high


def checked_pixels(limits: Sequence[int], least: int, what: str) -> None:
    """Check that pads, strides or sizes are at least `least`, and fit into 31 bits."""
    if any(not least <= int(item) < 1 << 31 for item in limits):
        raise BackendError(f"{what} {list(limits)} is out of range")


def checked_weights(
    kernel: Weight, bias: Weight | None, outputs: int, dtype: str, bias_dtype: str
) -> None:
    """Check the types of weights and bias, and the length of the bias."""
    if kernel.dtype.name != dtype:
        raise BackendError(f"a kernel must be {dtype}, not {kernel.dtype}{list(kernel.shape)}")
    if bias is not None and (bias.dtype.name != bias_dtype or bias.shape != (outputs,)):
        raise BackendError(
            f"a bias must be {bias_dtype}[{outputs}], not {bias.dtype}{list(bias.shape)}"
        )


def check_kernel_size(
    shape: Shape, kernel: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> None:
    """Check that a kernel window is not larger than its padded input of [N, H, W, C]."""
    for axis in (0, 1):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        if extent > shape[1 + axis] + pads[axis] + pads[2 + axis]:
            raise BackendError(
                f"a kernel window of {extent} is larger than the padded input of {list(shape)}"
            )


def float32(value: float) -> float:
    """Round a limit to float32; infinity stays."""
    return math.copysign(math.inf, value) if math.isinf(value) else float(np.float32(value))
