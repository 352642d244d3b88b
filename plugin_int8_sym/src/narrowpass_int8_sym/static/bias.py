"""Biases as integers of 32 bits, and the room that sums of products leave them."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import DataError
from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.static.units import Unit
from narrowpass_int8_sym.weighted_nodes import WeightedNode

Array = np.ndarray[Any, Any]

LARGEST_SUM = 2**31 - 1


def terms(weighted: WeightedNode) -> int:
    """Return how many products an element of the result is a sum of, at most."""
    tensor = constant_tensor(weighted.weight)
    dims = () if tensor is None else tuple(tensor.shape.numpy())
    size = int(np.prod(dims, dtype=np.int64))
    if weighted.node.op_type == "ConvTranspose":
        # The weight is [channels in, channels out of a group, ...].
        return size // (dims[1] * weighted.node.attributes.get_int("group", 1))
    return size // results(weighted)


def results(weighted: WeightedNode) -> int:
    """Return how many channels the result has."""
    tensor = constant_tensor(weighted.weight)
    dims = () if tensor is None else tuple(tensor.shape.numpy())
    if weighted.node.op_type == "ConvTranspose":
        return int(dims[1] * weighted.node.attributes.get_int("group", 1))
    return int(dims[0 if weighted.axis is None else weighted.axis])


def headroom(weighted: WeightedNode) -> int:
    """Return the largest magnitude of a bias that a sum in 32 bits has room for; below 1 for none.

    An element is up to 255 from its zero point, and a weight up to 127 from 0.
    """
    return LARGEST_SUM - terms(weighted) * 255 * 127


def bias_row(unit: Unit) -> Array:
    """Return a unit's bias as it is added: float64 [channels].

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
    return np.array(np.broadcast_to(row * beta, (results(unit.weighted),)))


def stored_bias(row: Array, operand: float, weights: Array) -> tuple[Array, Array]:
    """Return a bias as integers and their scales.

    Args:
        row: float64 [C].
        operand: the scale of what is multiplied.
        weights: float32 [] or [C]: the scales of the weight.

    Returns:
        int32 [C], and float32 [] or [C]: the products of both scales.
    """
    scales = np.asarray(np.float32(operand) * np.asarray(weights, np.float32), np.float32)
    whole = np.rint(row / scales.astype(np.float64))
    return np.clip(whole, -LARGEST_SUM, LARGEST_SUM).astype(np.int32), scales
