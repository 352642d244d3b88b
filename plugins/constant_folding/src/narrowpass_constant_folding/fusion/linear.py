"""Operators that are linear in constant weights, into which a scale and a shift can go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, dims_of, input_of, is_op
from narrowpass_constant_folding.graphs.nodes import clone_as
from narrowpass_constant_folding.graphs.scope import Scope

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Linear:
    """A node whose result is linear in `weight`, plus `bias`, channel by channel.

    Attributes:
        node: the node: Conv, ConvTranspose, Gemm or BatchNormalization.
        weight: its constant weights.
        bias: its constant bias; None where it has none.
        rank: the rank of the result; the channels are its axis 1.
        channels: their number.
    """

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    rank: int
    channels: int

    def scaled_weight(self, scope: Scope, scale: Array) -> Array:
        """Return the weights, in their own dtype, for a result scaled by `scale`.

        Args:
            scope: where the node is.
            scale: float64[channels]. Multiplied in float64 and rounded once.
        """
        weight = constant_array(scope, self.weight)
        result: Array = np.empty(weight.shape, weight.dtype)
        with np.errstate(all="ignore"):
            if self.node.op_type == "ConvTranspose":
                groups = attribute(self.node, "group", 1)
                grouped = (groups, weight.shape[0] // groups, *weight.shape[1:])
                factors = scale.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))
                _multiply(weight.reshape(grouped), factors, result.reshape(grouped))
                return result
            factors = scale.reshape(-1, *(1,) * (weight.ndim - 1))
            if self.node.op_type == "Gemm" and not attribute(self.node, "transB", 0):
                factors = scale
            _multiply(weight, factors, result)
        return result

    def new_bias(self, scope: Scope, scale: Array, shift: Array) -> Array:
        """Return the bias for a result scaled and shifted, as float64[channels]."""
        if self.bias is None:
            return shift
        bias = constant_array(scope, self.bias).astype(np.float64).reshape(-1)
        bias = np.broadcast_to(bias, (self.channels,))
        result: Array = bias * attribute(self.node, "beta", 1.0) * scale + shift
        return result

    def with_weights(self, weight: ir.Value, bias: ir.Value, output: ir.Value) -> ir.Node:
        """Return the node with other weights; all else is as it was."""
        inputs = list(self.node.inputs)
        index = 2
        inputs[1] = weight
        inputs[index : index + 1] = [bias]
        attributes = [attr for name, attr in self.node.attributes.items() if name != "beta"]
        return clone_as(self.node, self.node.op_type, inputs, attributes, [output])


def linear_of(scope: Scope, node: ir.Node | None) -> Linear | None:
    """Return `node` as a linear operator, or None where it is none with constant weights."""
    if not is_op(node, "Conv", "ConvTranspose", "Gemm", "BatchNormalization") or node is None:
        return None
    weight = input_of(node, 1)
    tensor = scope.broadcast_constant(weight)
    if weight is None or tensor is None or not tensor.dtype.is_floating_point():
        return None
    bias = input_of(node, 2)
    dims = tuple(tensor.shape.numpy())
    match node.op_type:
        case "Conv" if len(dims) >= 3:
            rank, channels = len(dims), dims[0]
        case "ConvTranspose" if len(dims) >= 3:
            rank, channels = len(dims), dims[1] * attribute(node, "group", 1)
        case "Gemm" if len(dims) == 2:
            rank, channels = 2, dims[0 if attribute(node, "transB", 0) else 1]
        case "BatchNormalization" if len(dims) == 1:
            source = None if node.inputs[0] is None else dims_of(node.inputs[0])
            rank, channels = 0 if source is None else len(source), dims[0]
        case _:
            return None
    found = Linear(node, weight, bias, rank, channels)
    return found if rank >= 2 and _fits(scope, found) else None


def _fits(scope: Scope, linear: Linear) -> bool:
    """Whether the bias is a constant of a value for each channel, or one for all."""
    if linear.bias is None:
        return len(linear.node.inputs) <= 3
    tensor = scope.broadcast_constant(linear.bias)
    if tensor is None:
        return False
    dims = tuple(tensor.shape.numpy())
    if linear.node.op_type != "Gemm":
        return dims == (linear.channels,)
    if "broadcast" in linear.node.attributes:  # before opset 7
        return False
    return dims in ((), (1,), (1, 1), (linear.channels,), (1, linear.channels))


def constant_array(scope: Scope, value: ir.Value) -> Array:
    """Read the data of a value that is known to be constant."""
    tensor = scope.broadcast_constant(value)
    if tensor is None:
        raise ValueError(f"{value.name!r} is no constant")
    array: Array = tensor.numpy()
    return array


def _multiply(left: Array, right: Array, out: Array) -> None:
    if out.dtype.kind == "f":
        # Factors are upcast block by block, so that large weights are not held twice.
        np.multiply(left, right, out=out, dtype=np.float64, casting="unsafe")
    else:
        out[...] = (left.astype(np.float64) * right).astype(out.dtype)
