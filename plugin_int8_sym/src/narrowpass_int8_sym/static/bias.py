"""Biases as int32, and the accumulator headroom that is left for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import DataError
from narrowpass_int8_sym.static.units import NodeUnit
from narrowpass_int8_sym.weighted_nodes import WeightedNode
from narrowpass_ir.constants import constant_tensor

Array = np.ndarray[Any, Any]

INT32_MAX = 2**31 - 1
"""The largest int32."""


def reduction_length(weighted: WeightedNode) -> int:
    """Return the reduction length K: the most multiply-adds into one accumulator."""
    tensor = constant_tensor(weighted.weight)
    dims = () if tensor is None else tuple(tensor.shape.numpy())
    size = int(np.prod(dims, dtype=np.int64))
    if weighted.node.op_type == "ConvTranspose":
        # The weight is [channels in, channels out of a group, ...].
        return size // (dims[1] * weighted.node.attributes.get_int("group", 1))
    return size // output_channels(weighted)


def output_channels(weighted: WeightedNode) -> int:
    """Return the number of output channels."""
    tensor = constant_tensor(weighted.weight)
    dims = () if tensor is None else tuple(tensor.shape.numpy())
    if weighted.node.op_type == "ConvTranspose":
        return int(dims[1] * weighted.node.attributes.get_int("group", 1))
    return int(dims[0 if weighted.axis is None else weighted.axis])


def headroom(weighted: WeightedNode) -> int:
    """Return the accumulator headroom: the largest bias that cannot overflow int32.

    It is below 1 where the accumulators alone can overflow.

    An activation is up to 255 from its zero point, and a weight up to 127 from 0.
    """
    return INT32_MAX - reduction_length(weighted) * 255 * 127


def float_bias(unit: NodeUnit) -> Array:
    """Return the bias of a unit, times beta: float64 [channels].

    Raises:
        DataError: an element is infinite or NaN.
    """
    tensor = constant_tensor(unit.bias)
    if tensor is None or unit.weighted is None or unit.bias is None:
        raise ValueError("the unit has no bias")
    row = np.ravel(np.asarray(tensor.numpy(), np.float64))
    if not np.isfinite(row).all():
        raise DataError(f"bias {unit.bias.name!r} has an element that is infinite or NaN")
    beta = unit.weighted.node.attributes.get_float("beta", 1.0) if unit.op_type == "Gemm" else 1.0
    return np.array(np.broadcast_to(row * beta, (output_channels(unit.weighted),)))


def quantized_bias(row: Array, operand: float, weights: Array) -> tuple[Array, Array]:
    """Return a bias quantized to int32, and its scales.

    Args:
        row: float64 [C].
        operand: the scale of the activation.
        weights: float32 [] or [C]: the scales of the weight.

    Returns:
        int32 [C], and float32 [] or [C]: scale of the activation · scale of the weight.
    """
    scales = np.asarray(np.float32(operand) * np.asarray(weights, np.float32), np.float32)
    whole = np.rint(row / scales.astype(np.float64))
    return np.clip(whole, -INT32_MAX, INT32_MAX).astype(np.int32), scales
