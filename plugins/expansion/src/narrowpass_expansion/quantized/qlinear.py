"""QLinear operators as floating-point operators between Q/DQ.

A backend that fuses Q/DQ into int8 kernels does so for these too. Integers stand for
``scale * (q - zero_point)``; a backend that computes in float32 has no int32 accumulators, so that
a result halfway between two integers may differ by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported
from narrowpass_ir.constants import constant_tensor

Write = Callable[[Emitter], Sequence[ir.Value]]


def quantize(e: Emitter) -> Sequence[ir.Value]:
    """Emit com.microsoft's QuantizeLinear as ONNX's."""
    inputs = e.required(0, "x"), e.required(1, "y_scale"), e.input(2)
    return [e.op("QuantizeLinear", *inputs, axis=e.get("axis", 1))]


def dequantize(e: Emitter) -> Sequence[ir.Value]:
    """Emit com.microsoft's DequantizeLinear as ONNX's."""
    inputs = e.required(0, "x"), e.required(1, "x_scale"), e.input(2)
    return [e.op("DequantizeLinear", *inputs, axis=e.get("axis", 1))]


def convolution(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearConv; the bias has the scale of the input times that of the weight."""
    x, w = _dequantize_input(e, 0, "x"), _dequantize_input(e, 3, "w", axis=0)
    bias = e.input(8)
    added = None if bias is None else _bias(e, bias, 1.0, 1, 4)
    names = "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"
    x = _channels_first(e, x)
    output = e.op("Conv", x, w, added, **{name: e.get(name, None) for name in names})
    return [_quantize_output(e, _channels_last(e, output), 6, e.dtype(e.required(0, "x")))]


def matmul(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearMatMul; scales of columns are one for each."""
    a, b = _dequantize_input(e, 0, "a", axis=-2), _dequantize_input(e, 3, "b", axis=-1)
    return [_quantize_output(e, e.op("MatMul", a, b), 6, e.dtype(e.required(0, "a")))]


def gemm(e: Emitter) -> Sequence[ir.Value]:
    """Emit QGemm; its result is float32 where it has no scale."""
    transposed, alpha = int(e.get("transB", 0)), float(e.get("alpha", 1.0))
    a, b = _dequantize_input(e, 0, "A"), _dequantize_input(e, 3, "B", axis=0 if transposed else 1)
    given = e.input(6)
    added = None if given is None else _bias(e, given, alpha, 1, 4)
    named = {"alpha": alpha, "transA": e.get("transA", 0), "transB": transposed}
    output = e.op("Gemm", a, b, added, **named)
    if e.input(7) is None:
        return [output]
    return [_quantize_output(e, output, 7, e.dtype(e.required(0, "A")))]


def binary(op_type: str) -> Write:
    """Return the function that emits a binary operator."""

    def write(e: Emitter) -> Sequence[ir.Value]:
        output = e.op(op_type, _dequantize_input(e, 0, "A"), _dequantize_input(e, 3, "B"))
        return [_quantize_output(e, output, 6, e.dtype(e.required(0, "A")))]

    return write


def sigmoid(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearSigmoid."""
    output = e.op("Sigmoid", _dequantize_input(e, 0, "X"))
    return [_quantize_output(e, output, 3, e.dtype(e.required(0, "X")))]


def leaky_relu(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearLeakyRelu, with alpha 0.01 by default."""
    output = e.op("LeakyRelu", _dequantize_input(e, 0, "X"), alpha=float(e.get("alpha", 0.01)))
    return [_quantize_output(e, output, 3, e.dtype(e.required(0, "X")))]


def pool(op_type: str, *names: str) -> Write:
    """Return the function that emits a pooling operator, of NCHW or NHWC."""

    def write(e: Emitter) -> Sequence[ir.Value]:
        x = _channels_first(e, _dequantize_input(e, 0, "X"))
        output = e.op(op_type, x, **{name: e.get(name, None) for name in names})
        return [_quantize_output(e, _channels_last(e, output), 3, e.dtype(e.required(0, "X")))]

    return write


def mean(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearReduceMean."""
    axes = e.get("axes", None)
    along = None if axes is None else e.const(list(axes))
    output = e.op(
        "ReduceMean", _dequantize_input(e, 0, "data"), along, keepdims=e.get("keepdims", 1)
    )
    return [_quantize_output(e, output, 3, e.dtype(e.required(0, "data")))]


def softmax(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearSoftmax; before operator set 13 all axes from `axis` on are one."""
    given = e.required(0, "X")
    x, rank = _dequantize_input(e, 0, "X"), len(e.dims(given))
    before = int(e.get("opset", 13)) < 13
    axis = int(e.get("axis", 1 if before else -1)) % max(1, rank)
    if before and axis != rank - 1:
        rows = e.reshape(x, *[0] * axis, -1) if axis else e.reshape(x, 1, -1)
        output = e.op("Reshape", e.op("Softmax", rows, axis=-1), e.op("Shape", x))
    else:
        output = e.op("Softmax", x, axis=axis)
    return [_quantize_output(e, output, 3, e.dtype(given))]


def concat(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearConcat: the result's scale and zero point, then three inputs for each tensor."""
    count, rest = divmod(len(e.node.inputs) - 2, 3)
    if rest or count < 1:
        raise Unsupported(f"it has {len(e.node.inputs)} inputs: not two and three for each tensor")
    reals = [_dequantize_input(e, 3 * index + 2, "inputs") for index in range(count)]
    output = e.op("Concat", *reals, axis=int(e.get("axis", 0)))
    return [_quantize_output(e, output, 0, e.dtype(e.required(2, "inputs")))]


def where(e: Emitter) -> Sequence[ir.Value]:
    """Emit QLinearWhere."""
    output = e.op(
        "Where",
        e.required(0, "condition"),
        _dequantize_input(e, 1, "X"),
        _dequantize_input(e, 4, "Y"),
    )
    return [_quantize_output(e, output, 7, e.dtype(e.required(1, "X")))]


def emit_dequantize(
    e: Emitter, value: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int = 1
) -> ir.Value:
    """Emit the DequantizeLinear of a tensor with one scale, or one for each index of `axis`.

    Raises:
        Unsupported: its scale has several axes of more than one element.
    """
    scale, zero = _scalar_or_vector(e, scale), None if zero is None else _scalar_or_vector(e, zero)
    sized = [item for item in (scale, zero) if item is not None and e.dims(item)]
    if not sized:
        return e.op("DequantizeLinear", value, scale, zero)
    if zero is not None and len(sized) == 1:
        scale, zero = _broadcast_parameters(e, scale, zero)
    return e.op("DequantizeLinear", value, scale, zero, axis=axis % max(1, len(e.dims(value))))


def _broadcast_parameters(e: Emitter, scale: ir.Value, zero: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return a scale and a zero point broadcast to one shape."""
    if e.dims(scale):
        return scale, e.op("Expand", zero, e.op("Shape", scale))
    return e.op("Expand", scale, e.op("Shape", zero)), zero


def _scalar_or_vector(e: Emitter, value: ir.Value) -> ir.Value:
    """Return a parameter as a scalar or vector; some tools store [1] or [1, N]."""
    dims = e.dims(value)
    if not dims or (len(dims) == 1 and dims[0] != 1):
        return value
    if any(dim != 1 for dim in dims[:-1]):
        raise Unsupported(f"its scale or zero point {value.name!r} is {list(dims)}, and no vector")
    shape = [] if dims[-1] == 1 else [-1]
    tensor = None if value.is_graph_input() else constant_tensor(value)
    if tensor is not None:
        return e.const(tensor.numpy().reshape(shape), tensor.dtype)
    return e.op("Reshape", value, e.const(np.array(shape, np.int64)))


def _dequantize_input(e: Emitter, index: int, name: str, axis: int = 1) -> ir.Value:
    """Emit the DequantizeLinear of an input whose scale and zero point follow it."""
    value, scale = e.required(index, name), e.required(index + 1, f"{name}_scale")
    return emit_dequantize(e, value, scale, e.input(index + 2), axis)


def _quantize_output(e: Emitter, real: ir.Value, index: int, dtype: ir.DataType) -> ir.Value:
    """Emit the QuantizeLinear of a result by the scale and zero point at `index` and behind."""
    scale, zero = _scalar_or_vector(e, e.required(index, "y_scale")), e.input(index + 1)
    given = e.const(0, dtype) if zero is None else _scalar_or_vector(e, zero)
    return e.op("QuantizeLinear", real, scale, given)


def _bias(e: Emitter, bias: ir.Value, alpha: float, first: int, second: int) -> ir.Value:
    """Emit the DequantizeLinear of a bias whose scale is `alpha` times those of two inputs."""
    scales = [_scalar_or_vector(e, e.required(index, "scale")) for index in (first, second)]
    tensors = [None if s.is_graph_input() else constant_tensor(s) for s in scales]
    if all(tensor is not None for tensor in tensors):
        arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
        scale = e.const(np.float32(alpha) * arrays[0] * arrays[1], np.float32)
    else:
        scale = e.op("Mul", *scales)
        if alpha != 1:
            scale = e.op("Mul", scale, e.const(alpha, np.float32))
    return emit_dequantize(e, bias, scale, None, axis=-1)


def _channels_first(e: Emitter, x: ir.Value) -> ir.Value:
    if not e.get("channels_last", 0):
        return x
    rank = len(e.dims(e.required(0, "X")))
    return e.transpose(x, 0, rank - 1, *range(1, rank - 1))


def _channels_last(e: Emitter, x: ir.Value) -> ir.Value:
    if not e.get("channels_last", 0):
        return x
    rank = len(e.dims(e.required(0, "X")))
    return e.transpose(x, 0, *range(2, rank), 1)
