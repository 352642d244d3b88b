"""Folds scale and shift into the weights of the operator before them (Jacob et al., CVPR 2018).

`Affine` is a node that scales and shifts channels by constants: BatchNormalization, Mul, Div, Add
or Sub. `Linear` is an operator whose result is linear in a constant weight, which takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import (
    attribute,
    dims_of,
    input_of,
    is_op,
    only_first_output_used,
)
from narrowpass_constant_folding.graphs.scope import Scope, clone_as
from narrowpass_constant_folding.report import Refusal
from narrowpass_constant_folding.rewrite import Work

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


_NODE_BYTES = 32
"""What a node takes in a file, at the least."""


def absorb(work: Work, *op_types: str) -> None:
    """Fuse every affine node of these types into a linear one before it."""
    for scope in work.scopes():
        for node in scope.graph:
            if node.op_type in op_types and scope.can_edit(node):
                _absorb(work, scope, node, op_types)


def _absorb(work: Work, scope: Scope, node: ir.Node, op_types: tuple[str, ...]) -> None:
    for affine in affine_of(scope, node, *op_types):
        linear = linear_of(scope, scope.producer(affine.source))
        if linear is None or not affine.fits(scope, linear.rank, linear.channels):
            continue
        refusal = _refuse(scope, linear, affine) or _fuse(scope, linear, affine)
        if refusal is None:
            work.report.record(linear.node, "fused", node.op_type)
            return
        work.report.record_refusal(node, refusal)


def _refuse(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    if not scope.can_edit(linear.node):
        return Refusal("keep", f"the option keep selects {linear.node.name!r}")
    if scope.only_reader(affine.source) is not affine.node:
        return Refusal("reader", f"{affine.source.name!r} is also read elsewhere")
    if linear.node.op_type == "BatchNormalization" and any(
        value.name and (value.uses() or value.is_graph_output())
        for value in linear.node.outputs[1:]
    ):
        return Refusal("reader", "other outputs of the normalization are read")
    return _refuse_growth(scope, linear, affine)


def _refuse_growth(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    """Refuse what would increase the model's size: shared or broadcast weights."""
    width = -(-_tensor(scope, linear.weight).dtype.bitwidth // 8)
    added = width * linear.channels
    replaced = {*affine.constants}
    if linear.bias is not None:
        replaced.add(linear.bias)
    if _scales(affine):
        added += int(_tensor(scope, linear.weight).nbytes)
        replaced.add(linear.weight)
    readers = {linear.node, affine.node}
    freed = sum(_freed(scope, value, readers) for value in replaced)
    if added <= freed + _NODE_BYTES:
        return None
    return Refusal(
        "growth",
        f"it would add {added} bytes of weights and free {freed}, as others read them or they "
        "are repeated by a node",
        measured=added,
        limit=freed + _NODE_BYTES,
    )


def _freed(scope: Scope, value: ir.Value, readers: set[ir.Node]) -> int:
    """Return the bytes of a constant that nothing else than `readers` reads."""
    tensor = scope.constant(value)
    if tensor is None or value.is_graph_output():
        return 0
    return 0 if any(use.node not in readers for use in value.uses()) else int(tensor.nbytes)


def _tensor(scope: Scope, value: ir.Value) -> ir.TensorProtocol:
    tensor = scope.broadcast_constant(value)
    if tensor is None:
        raise ValueError(f"{value.name!r} is no constant")
    return tensor


def _scales(affine: Affine) -> bool:
    return affine.node.op_type not in ("Add", "Sub")


def _fuse(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    dtype = _tensor(scope, linear.weight).dtype
    scale, shift = affine.read(scope, linear.channels)
    with np.errstate(all="ignore"):
        bias = linear.new_bias(scope, scale, shift).astype(dtype.numpy())
    arrays = [bias]
    if _scales(affine):
        arrays.append(linear.scaled_weight(scope, scale))
    if not all(_finite(array) for array in (scale, shift, *arrays)):
        return Refusal("finite", "the fused weights would not be finite")
    node = linear.node
    weight = linear.weight
    if _scales(affine):
        name = f"{weight.name}:{affine.by.name}"
        weight = scope.add_constant(name, ir.Tensor(arrays[1], dtype=dtype), node)
    stem = linear.weight.name if linear.bias is None else linear.bias.name
    suffix = affine.constants[1 if len(affine.constants) > 1 else 0].name
    fused_bias = scope.add_constant(f"{stem}:{suffix}", ir.Tensor(bias, dtype=dtype), node)
    output = scope.successor(affine.node.outputs[0])
    new = linear.with_weights(weight, fused_bias, output)
    scope.replace(affine.node, new, {affine.node.outputs[0]: output})
    scope.remove(node)
    return None


def _finite(array: Array) -> bool:
    return bool(np.isfinite(array.astype(np.float32) if array.dtype.kind == "V" else array).all())
