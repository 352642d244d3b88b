"""Reads the quantization of an integer tensor from a model: scale, zero point, axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.quantization import Parameters
from narrowpass_ir.constants import constant_tensor

Array = np.ndarray[Any, Any]

INT8, UINT8, INT32 = ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32
FLOAT = ir.DataType.FLOAT
BYTES = (INT8, UINT8)

RANGES = {INT8: (-128, 127), UINT8: (0, 255), INT32: (-(2**31), 2**31 - 1)}
"""The least and the largest integer of a type."""

_SHIFT = 128


@dataclass(frozen=True)
class Quantization:
    """The quantization of an integer tensor: number = ``scale · (integer - zero point)``.

    Attributes:
        scale: float32 [] or, along `axis`, [C]; positive and finite.
        zero_point: int32, of the same shape.
        dtype: of the integers.
        axis: along which scales differ; None for one scale. It may be negative.
    """

    scale: Array
    zero_point: Array
    dtype: ir.DataType
    axis: int | None = None

    @property
    def signed(self) -> Quantization:
        """The int8 form of a uint8 quantization: integers and zero point less by 128."""
        if self.dtype != UINT8:
            return self
        return replace(self, zero_point=self.zero_point - _SHIFT, dtype=INT8)

    @property
    def parameters(self) -> Parameters:
        """The scale and zero point of the int8 form, for a tensor with one scale."""
        same = self.signed
        return Parameters(float(same.scale), int(same.zero_point))

    def is_same(self, other: Quantization) -> bool:
        """Return whether both are equal, or differ only in int8 and uint8."""
        mine, others = self.signed, other.signed
        return (
            mine.dtype == others.dtype
            and mine.axis == others.axis
            and np.array_equal(mine.scale, others.scale)
            and np.array_equal(mine.zero_point, others.zero_point)
        )

    def along(self, array: Array) -> tuple[Array, Array]:
        """Return scale and zero point in shapes that broadcast against an array of the tensor."""
        if self.axis is None:
            return self.scale, self.zero_point
        shape = [1] * array.ndim
        shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)

    def dequantized(self, integers: Array) -> Array:
        """Return the dequantized integers, as DequantizeLinear computes them: float32."""
        scale, zero = self.along(integers)
        wide: Array = (integers.astype(np.int64) - zero).astype(np.float32) * scale
        return wide

    def quantized(self, numbers: Array) -> Array:
        """Return the quantized numbers, as QuantizeLinear computes them.

        Args:
            numbers: float32, without NaN.
        """
        scale, zero = self.along(numbers)
        low, high = RANGES[self.dtype]
        with np.errstate(over="ignore"):
            whole = np.clip(np.rint(numbers / scale), -(2.0**40), 2.0**40).astype(np.int64)
        clipped: Array = np.clip(whole + zero, low, high).astype(self.dtype.numpy())
        return clipped


def read_quantization(
    scale: ir.Value | None,
    zero_point: ir.Value | None,
    dtype: ir.DataType | None = None,
    axis: int | None = None,
) -> Quantization | str:
    """Read a quantization from the scale and zero point inputs of a node.

    Args:
        scale: of the node.
        zero_point: None where it is left out.
        dtype: of the integers, if known from elsewhere than the zero point.
        axis: along which scales differ, where there are several.

    Returns:
        A reason where it is not usable: computed, of another type or shape, not positive.
    """
    numbers, zeros = constant_tensor(scale), constant_tensor(zero_point)
    if scale is None:
        return "its scale is missing"
    if numbers is None:
        return f"its scale {scale.name!r} is computed"
    if numbers.dtype != FLOAT:
        return f"its scale {scale.name!r} is {numbers.dtype.name.lower()}"
    if zero_point is not None and zeros is None:
        return f"its zero point {zero_point.name!r} is computed"
    kind = zeros.dtype if zeros is not None else dtype
    if kind is None:
        return "the type of its integers is not known: its zero point is missing"
    if dtype is not None and kind != dtype:
        return f"its zero point is {kind.name.lower()}, its integers are {dtype.name.lower()}"
    if kind not in RANGES:
        return f"its integers are {kind.name.lower()}, not 8 bits"
    factors = np.array(numbers.numpy(), np.float32)
    offsets = np.zeros_like(factors, np.int32) if zeros is None else zeros.numpy().astype(np.int32)
    if factors.ndim > 1:
        return f"its scale {scale.name!r} has {factors.ndim} dimensions"
    if factors.size != offsets.size:
        return f"it has {factors.size} scales and {offsets.size} zero points"
    wrong = factors[~(np.isfinite(factors) & (factors > 0))]
    if factors.size == 0 or wrong.size:
        what = f"{wrong.flat[0]:g}, not above 0 and finite" if wrong.size else "empty"
        return f"its scale {scale.name!r} is {what}"
    if factors.size == 1:
        return Quantization(factors.reshape(()), offsets.reshape(()), kind)
    if axis is None:
        return f"its scale {scale.name!r} has {factors.size} elements, not one"
    return Quantization(factors, offsets.reshape(-1), kind, axis)


def axis_problem(quantization: Quantization, dims: Sequence[int | None]) -> str:
    """Return why scales along an axis do not fit a tensor; empty where they do.

    Args:
        quantization: of the tensor.
        dims: of the tensor, None where one is not known.
    """
    axis = quantization.axis
    if axis is None:
        return ""
    if not -len(dims) <= axis < len(dims):
        return f"its axis {axis} is none of a tensor of {len(dims)} dimensions"
    size = dims[axis]
    if size is not None and size != quantization.scale.size:
        return f"it has {quantization.scale.size} scales along axis {axis} of {size} elements"
    return ""


def dims_of(value: ir.Value | None) -> list[int | None] | None:
    """Return the dimensions of a value, None for unknown ones; None for an unknown rank."""
    tensor = constant_tensor(value)
    shape = tensor.shape if tensor is not None else None if value is None else value.shape
    if shape is None:
        return None
    return [dim if isinstance(dim, int) else None for dim in shape]


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node; None for one that is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, once; None where there are others."""
    readers = [user for user, _ in value.uses()]
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def is_node(node: ir.Node | None, *kinds: str) -> bool:
    """Return whether a node is one of ONNX's own operators of these names."""
    return node is not None and not node.domain and node.op_type in kinds


def read_qdq(node: ir.Node) -> Quantization | str:
    """Return the quantization of a QuantizeLinear or DequantizeLinear, or why it is not usable."""
    if node.attributes.get_int("block_size", 0):
        return "it is quantized in blocks"
    if len(node.inputs) < 2 or node.inputs[0] is None:
        return "its scale is missing"
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    source = node.inputs[0]
    dtype: ir.DataType | None
    if node.op_type == "QuantizeLinear":
        dtype = ir.DataType(node.attributes.get_int("output_dtype", 0)) or None
        if dtype is None and zero is None:
            dtype = UINT8
    else:
        tensor = constant_tensor(source)
        dtype = source.dtype if tensor is None else tensor.dtype
    found = read_quantization(node.inputs[1], zero, dtype, node.attributes.get_int("axis", 1))
    if isinstance(found, str):
        return found
    dims = dims_of(source)
    problem = axis_problem(found, dims) if dims is not None else ""
    if problem:
        return problem
    if found.axis is not None and found.axis < 0 and dims is not None:
        found = replace(found, axis=found.axis % len(dims))
    return found
