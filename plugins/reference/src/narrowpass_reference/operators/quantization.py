"""QuantizeLinear: what is not finite, or far beyond the integers, is saturated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

Array = np.ndarray[Any, Any]

_BITS = {
    f"{prefix}INT{bits}": (0 if prefix else -(1 << (bits - 1)), (1 << bits - (not prefix)) - 1)
    for prefix in ("", "U")
    for bits in (2, 4, 8, 16)
}
"""The least and the greatest integer of each type, by its name."""


class QuantizeLinear(OpRun):
    """Saturates infinities, and returns the least integer for NaN, as onnxruntime does.

    onnx's converts to 32-bit integers first, which wraps.
    """

    def _run(
        self,
        x: Array,
        y_scale: Array,
        y_zero_point: Array | None = None,
        axis: int | None = None,
        saturate: int | None = None,
        block_size: int | None = None,
        output_dtype: int | None = None,
        precision: int | None = None,
    ) -> tuple[Any, ...]:
        axis = 1 if axis is None else axis
        kind = output_dtype or onnx.TensorProto.UINT8
        if y_zero_point is not None:
            kind = onnx.helper.np_dtype_to_tensor_dtype(y_zero_point.dtype)
            if output_dtype and output_dtype != kind:
                raise ValueError("output_dtype is not the type of the zero point")
        name = onnx.TensorProto.DataType.Name(kind)
        if name not in _BITS:
            attributes = {
                "axis": axis,
                "saturate": saturate,
                "block_size": block_size,
                "output_dtype": output_dtype,
                "precision": precision,
            }
            given = {key: value for key, value in attributes.items() if value is not None}
            return (load_op("", "QuantizeLinear").eval(x, y_scale, y_zero_point, **given),)
        scale = _along(y_scale, x, axis, block_size or 0)
        if precision:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(precision)
            x, scale = x.astype(dtype), scale.astype(dtype)
        least, greatest = _BITS[name]
        # Integers of 16 bits and their accumulators are exact in float64, and so are infinities.
        number = np.rint(x / scale).astype(np.float64)
        if y_zero_point is not None:
            number = number + _along(y_zero_point, x, axis, block_size or 0).astype(np.float64)
        number = np.where(np.isnan(number), least, np.clip(number, least, greatest))
        return (number.astype(onnx.helper.tensor_dtype_to_np_dtype(kind)),)


def _along(parameter: Array, x: Array, axis: int, block: int) -> Array:
    """Reshape scales or zero points so that they broadcast with `x`."""
    if parameter.size == 1 and not block:
        return parameter.reshape(())
    if block:
        repeated = np.repeat(parameter, block, axis)
        return np.take(repeated, range(x.shape[axis]), axis)
    if parameter.ndim != 1 or parameter.size != x.shape[axis]:
        raise ValueError(f"{parameter.size} parameters do not fit axis {axis} of {list(x.shape)}")
    return parameter.reshape([-1 if other == axis % x.ndim else 1 for other in range(x.ndim)])
