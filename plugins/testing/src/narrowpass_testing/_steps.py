"""What a generated model is built of: a builder, and steps that add to it.

A step takes three small numbers and chooses by them among the values that exist, modulo how
many there are, so that any numbers are a valid choice. It adds nothing where no value fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
INTS = (TensorProto.INT64, TensorProto.INT32)

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """A value of the graph: its name, element type and shape."""

    name: str
    dtype: int
    shape: Shape

    @property
    def static(self) -> bool:
        """Whether all dimensions are known."""
        return all(isinstance(dim, int) for dim in self.shape)


@dataclass
class Builder:
    """A graph under construction.

    Attributes:
        opset: the version of the standard operators.
        values: inputs, initializers and node outputs, in the order in which they were added.
    """

    opset: int
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def add_input(self, dtype: int, shape: Shape) -> None:
        """Add an input."""
        value = Value(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(_info(value))
        self.values.append(value)

    def add_initializer(self, dtype: int, shape: Sequence[int], fill: int) -> None:
        """Add an initializer; `fill` chooses among zeros, ones, a range, signed, and special."""
        self.constant(filled(dtype, shape, fill))

    def add_default(self) -> None:
        """Declare the first initializer as the default of an input of the same name."""
        if self.initializers:
            name = self.initializers[0].name
            self.inputs.append(_info(next(v for v in self.values if v.name == name)))

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """Add an initializer with the given values."""
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        value = Value(name, self.initializers[-1].data_type, array.shape)
        self.values.append(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value],
        dtype: int | None = None,
        shape: Shape | None = None,
        **attributes: Any,
    ) -> Value:
        """Add a node with one output, by default of the first input's dtype and shape."""
        number = len(self.nodes)
        value = Value(
            f"v{number}",
            inputs[0].dtype if dtype is None else dtype,
            inputs[0].shape if shape is None else shape,
        )
        names = [operand.name for operand in inputs]
        self.nodes.append(
            helper.make_node(op_type, names, [value.name], f"n{number}", **attributes)
        )
        self.values.append(value)
        return value

    def pick(self, choice: int, fits: Callable[[Value], bool]) -> Value | None:
        """Choose among the values that fit, the latest first; None where there is none."""
        found = [value for value in reversed(self.values) if fits(value)]
        return found[choice % len(found)] if found else None

    def info(self, name: str) -> onnx.ValueInfoProto:
        """Return name, type and shape of a value as the graph's outputs are written."""
        return _info(next(value for value in self.values if value.name == name))


Step = Callable[[Builder, int, int, int], object]


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.dtype, list(value.shape))


def filled(dtype: int, shape: Sequence[int], fill: int) -> np.ndarray[Any, Any]:
    """Return an array whose values `fill` chooses."""
    target = helper.tensor_dtype_to_np_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    counting = np.arange(size)
    flat: np.ndarray[Any, Any] = [
        np.zeros(size),
        np.ones(size),
        counting % 5,
        counting % 7 - 3,
        counting % 3,
    ][fill % 5]
    if dtype in FLOATS:
        flat = flat / 2
        if fill % 5 == 4:
            flat = np.resize([np.nan, 1.0, -np.inf, -0.0], size)
    elif dtype == TensorProto.UINT8:
        flat = np.abs(flat)
    return np.asarray(flat.reshape(shape)).astype(target)


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape that two broadcast to; None where they may not."""
    longest = max(len(a), len(b))
    out: list[int | str | None] = []
    for left, right in zip(
        (1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b, strict=True
    ):
        if left == right and left is not None:
            out.append(left)
        elif left == 1 or right == 1:
            out.append(right if left == 1 else left)
        else:
            return None
    return tuple(out)


def _is_float(value: Value) -> bool:
    return value.dtype in FLOATS


def _unary(b: Builder, op: int, which: int, _: int) -> None:
    x = b.pick(which, _is_float)
    if x:
        b.node(
            ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Floor", "Sqrt", "Reciprocal")[op % 8], [x]
        )


def _binary(b: Builder, op: int, first: int, second: int) -> None:
    x = b.pick(first, lambda v: v.dtype in (*FLOATS, *INTS))
    if x is None:
        return
    y = b.pick(second, lambda v: v.dtype == x.dtype and broadcast(x.shape, v.shape) is not None)
    # A value with an unknown dimension does not even fit itself.
    y = y or b.constant(filled(x.dtype, (), second))
    op_type = ("Add", "Mul", "Sub", "Div" if _is_float(x) else "Add")[op % 4]
    b.node(op_type, [x, y], shape=broadcast(x.shape, y.shape))


def _compare(b: Builder, op: int, first: int, second: int) -> None:
    x = b.pick(first, lambda v: v.dtype in (*FLOATS, *INTS))
    if x is None:
        return
    limit = b.constant(filled(x.dtype, (), second))
    mask = b.node(("Less", "Equal", "Greater")[op % 3], [x, limit], TensorProto.BOOL)
    if op >= 8:
        b.node("Where", [mask, x, limit], x.dtype, x.shape)


def _logic(b: Builder, op: int, which: int, _: int) -> None:
    x = b.pick(which, lambda v: v.dtype == TensorProto.BOOL)
    if x:
        b.node("Not", [x]) if op < 8 else b.node("And", [x, x])


def _identity(b: Builder, op: int, which: int, _: int) -> None:
    x = b.pick(which, lambda v: v.dtype in FLOATS if op >= 8 else True)
    if x:
        b.node("Dropout" if op >= 8 else "Identity", [x])


def _cast(b: Builder, to: int, which: int, _: int) -> None:
    # From float to integer, NaN and what is out of range have no defined result.
    x = b.pick(which, lambda v: v.dtype not in FLOATS)
    y = b.pick(which, _is_float)
    source, targets = (y, FLOATS) if y and to >= 8 else (x, (*FLOATS, *INTS))
    if source:
        target = targets[to % len(targets)]
        b.node("Cast", [source], target, to=target)


def _constant(b: Builder, dtype: int, size: int, fill: int) -> None:
    kind = (*FLOATS, *INTS)[dtype % 5]
    array = filled(kind, (3,) if size % 2 else (2, 3), fill)
    b.node("Constant", [], kind, array.shape, value=numpy_helper.from_array(array))


def _shape(b: Builder, op: int, which: int, _: int) -> None:
    x = b.pick(which, lambda v: True)
    if x is None:
        return
    if op < 4:
        b.node("Size", [x], TensorProto.INT64, ())
        return
    dims = b.node("Shape", [x], TensorProto.INT64, (len(x.shape),))
    if op >= 8:
        b.node("ConstantOfShape", [dims], TensorProto.FLOAT, x.shape)


def _reshape(b: Builder, op: int, which: int, _: int) -> None:
    x = b.pick(which, lambda v: v.static)
    if x is None:
        return
    size = int(np.prod([int(dim or 0) for dim in x.shape], dtype=np.int64))
    if op < 8 and size:
        target = b.constant(np.array([-1], dtype=np.int64))
        b.node("Reshape", [x, target], shape=(size,))
        return
    axes = b.constant(np.array([0], dtype=np.int64))
    wide = b.node("Unsqueeze", [x, axes], shape=(1, *x.shape))
    b.node("Squeeze", [wide, axes], shape=x.shape)


def _transpose(b: Builder, _: int, which: int, __: int) -> None:
    x = b.pick(which, lambda v: len(v.shape) > 1)
    if x:
        order = list(reversed(range(len(x.shape))))
        b.node("Transpose", [x], shape=x.shape[::-1], perm=order)


def _concat(b: Builder, _: int, which: int, __: int) -> None:
    x = b.pick(which, lambda v: len(v.shape) > 0 and isinstance(v.shape[-1], int))
    if x:
        last = int(x.shape[-1] or 0)
        b.node("Concat", [x, x], shape=(*x.shape[:-1], 2 * last), axis=-1)


def _gather(b: Builder, _: int, which: int, __: int) -> None:
    x = b.pick(which, lambda v: len(v.shape) > 0 and v.shape[0] in (1, 2, 3))
    if x:
        index = b.constant(np.array(0, dtype=np.int64))
        b.node("Gather", [x, index], shape=x.shape[1:], axis=0)


def _matmul(b: Builder, fill: int, which: int, columns: int) -> None:
    x = b.pick(which, lambda v: _is_float(v) and len(v.shape) == 2 and v.shape[1] == 3)
    if x:
        width = 1 + columns % 3
        weight = b.constant(filled(x.dtype, (3, width), fill % 4))
        b.node("MatMul", [x, weight], shape=(x.shape[0], width))


def _reduce(b: Builder, op: int, which: int, keep: int) -> None:
    x = b.pick(which, lambda v: _is_float(v) and len(v.shape) > 0 and 0 not in v.shape)
    if x:
        axes = b.constant(np.array([-1], dtype=np.int64))
        kept = keep % 2
        shape = (*x.shape[:-1], 1) if kept else x.shape[:-1]
        b.node("ReduceSum", [x, axes], shape=shape, keepdims=kept)
    if x and op >= 8:
        b.node("Softmax", [x], axis=-1)


def _if(b: Builder, then_op: int, which: int, source: int) -> None:
    x = b.pick(which, _is_float)
    condition = b.pick(source, lambda v: v.dtype == TensorProto.BOOL and v.shape == ())
    if x is None:
        return
    if condition is None or source >= 8:
        condition = b.constant(np.array(bool(source % 2)))
    number = len(b.nodes)
    branches = []
    for which_branch, op_type in (("then", ("Neg", "Relu", "Abs")[then_op % 3]), ("else", "Tanh")):
        inner = Value(f"{which_branch}{number}", x.dtype, x.shape)
        node = helper.make_node(op_type, [x.name], [inner.name], f"{which_branch}_node{number}")
        branches.append(
            helper.make_graph([node], f"{which_branch}_graph{number}", [], [_info(inner)])
        )
    b.node("If", [condition], x.dtype, x.shape, then_branch=branches[0], else_branch=branches[1])


STEPS: tuple[Step, ...] = (
    _identity,
    _unary,
    _binary,
    _constant,
    _cast,
    _shape,
    _reshape,
    _transpose,
    _concat,
    _gather,
    _matmul,
    _reduce,
    _compare,
    _logic,
    _if,
)
"""All steps, the simplest first: an example shrinks towards the front."""
