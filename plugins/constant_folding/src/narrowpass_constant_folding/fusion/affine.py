"""Nodes that scale and shift channels by constants: BatchNormalization, Mul, Div, Add, Sub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import (
    attribute,
    input_of,
    is_op,
    only_first_output_used,
)
from narrowpass_constant_folding.graphs.scope import Scope

Array = np.ndarray[Any, Any]

_FIRST_BATCHNORM_FOR_INFERENCE = 7
_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


@dataclass(frozen=True)
class Affine:
    """A node that computes ``source * scale + shift`` for each channel.

    Attributes:
        node: the node.
        source: what it scales and shifts.
        constants: the values that it reads besides; all are constant floats.
        by: the node whose name the fused weights take.
    """

    node: ir.Node
    source: ir.Value
    constants: tuple[ir.Value, ...]
    by: ir.Value

    def fits(self, scope: Scope, rank: int, channels: int, axis: int = 1) -> bool:
        """Whether it works channel by channel on a source of that shape, and keeps its shape.

        Args:
            scope: where the node is.
            rank: the rank of the source.
            channels: the size of the source along `axis`.
            axis: the axis of the channels.
        """
        if self.node.op_type == "BatchNormalization":
            shapes = [_dims(scope, value) for value in self.constants]
            return axis == 1 and rank >= 2 and all(dims == (channels,) for dims in shapes)
        (constant,) = self.constants
        dims = _dims(scope, constant)
        if len(dims) > rank:
            return False
        padded = (1,) * (rank - len(dims)) + dims
        others = padded[:axis] + padded[axis + 1 :]
        return padded[axis] in (1, channels) and all(dim == 1 for dim in others)

    def read(self, scope: Scope, channels: int) -> tuple[Array, Array]:
        """Return scale and shift as float64[channels]; call it only where `fits` says so."""
        data = [
            tensor.numpy().astype(np.float64)
            for tensor in map(scope.broadcast_constant, self.constants)
            if tensor is not None
        ]
        one, zero = np.ones(channels), np.zeros(channels)
        with np.errstate(all="ignore"):
            if self.node.op_type == "BatchNormalization":
                scale, shift, mean, variance = data
                factor = scale / np.sqrt(variance + attribute(self.node, "epsilon", 1e-5))
                return factor, shift - mean * factor
            value = np.broadcast_to(data[0].reshape(-1), (channels,))
            match self.node.op_type:
                case "Mul":
                    return value, zero
                case "Div":
                    return one / value, zero
                case "Add":
                    return one, value
                case _:
                    return one, -value


def affine_of(scope: Scope, node: ir.Node, *op_types: str) -> Iterator[Affine]:
    """Yield the ways to see `node` as affine: at most one for each of its inputs.

    Args:
        scope: where the node is.
        node: any node.
        op_types: the operators to look for.
    """
    if not is_op(node, *op_types):
        return
    if node.op_type == "BatchNormalization":
        yield from _batchnorm(scope, node)
        return
    if "axis" in node.attributes or "broadcast" in node.attributes:
        return  # before opset 7
    first, second = input_of(node, 0), input_of(node, 1)
    if first is None or second is None:
        return
    if _is_float(scope, second):
        yield Affine(node, first, (second,), second)
    if node.op_type in ("Add", "Mul") and _is_float(scope, first):
        yield Affine(node, second, (first,), first)


def _batchnorm(scope: Scope, node: ir.Node) -> Iterator[Affine]:
    if attribute(node, "training_mode", 0) or attribute(node, "spatial", 1) != 1:
        return
    if scope.opset < _FIRST_BATCHNORM_FOR_INFERENCE and not attribute(node, "is_test", 0):
        return
    if len(node.inputs) != 5 or not only_first_output_used(node):
        return
    source, scale, shift, mean, variance = node.inputs
    constants = (scale, shift, mean, variance)
    known = tuple(value for value in constants if value is not None and _is_float(scope, value))
    if source is None or scale is None or len(known) != len(constants):
        return
    yield Affine(node, source, known, scale)


def _is_float(scope: Scope, value: ir.Value) -> bool:
    tensor = scope.broadcast_constant(value)
    return tensor is not None and tensor.dtype in _FLOATS


def _dims(scope: Scope, value: ir.Value) -> tuple[int, ...]:
    tensor = scope.broadcast_constant(value)
    return () if tensor is None else tuple(tensor.shape.numpy())
