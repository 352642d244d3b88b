"""What onnxruntime's quantization tools write, one node of each kind, and where that is from.

The list is taken from onnxruntime 1.32, ``onnxruntime/python/tools``: ``registry.py`` of
``quantization`` names the classes that quantize each operator, and these name the operators that
they write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)
MICROSOFT = "com.microsoft"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node.

    Attributes:
        written_by: the file that writes it, in ``onnxruntime/python/tools/quantization``.
        inputs: by name, in order; None for those left out.
        constants: names of initializers.
        outputs: names.
        domain: of the operator.
        steps: by how much integers may differ: 1 where accumulators are scaled in float32 in
            another order, so that a result at a half falls the other way; 0 for conversions.
        tolerance: of floats, relative to the largest element.
        attributes: of the node.
    """

    written_by: str
    inputs: Mapping[str, Array | None]
    constants: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)
    domain: str = MICROSOFT
    steps: int = 1
    tolerance: float = 1e-5
    attributes: Mapping[str, Any] = field(default_factory=dict)


def bytes_of(*shape: int, signed: bool = False) -> Array:
    numbers = RNG.integers(0, 256, shape).astype(np.uint8)
    return numbers.view(np.int8) if signed else numbers


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def scales(count: int, least: float = 0.01) -> Array:
    return (least * (1 + RNG.random(count))).astype(np.float32)


def zero(value: int, dtype: Any = np.uint8) -> Array:
    return np.array(value, dtype)


def _unary(
    path: str, x: Array, result_scale: float = 0.02, to: int = 120, **attributes: Any
) -> Case:
    kind = x.dtype
    inputs = {
        "x": x,
        "x_scale": scale(0.03),
        "x_zero": zero(5, kind),
        "y_scale": scale(result_scale),
        "y_zero": zero(to, kind),
    }
    constants = "x_scale", "x_zero", "y_scale", "y_zero"
    return Case(path, inputs, constants, attributes=attributes)


def _binary(path: str, b: Array) -> Case:
    inputs = {
        "a": bytes_of(2, 3, 4),
        "a_scale": scale(0.02),
        "a_zero": zero(100),
        "b": b,
        "b_scale": scale(0.03),
        "b_zero": zero(77),
        "y_scale": scale(0.05),
        "y_zero": zero(131),
    }
    return Case(path, inputs, tuple(name for name in inputs if "_" in name))


def _conv(unsigned: bool, zeros: Array, domain: str = "") -> Case:
    inputs = {
        "x": bytes_of(1, 8, 9, 9),
        "x_scale": scale(0.02),
        "x_zero": zero(119),
        "w": bytes_of(16, 8, 3, 3, signed=not unsigned),
        "w_scale": scales(16) if zeros.ndim else scale(0.01),
        "w_zero": zeros,
        "y_scale": scale(0.1),
        "y_zero": zero(128),
        "bias": RNG.integers(-5000, 5000, 16).astype(np.int32),
    }
    constants = tuple(name for name in inputs if name != "x")
    return Case("operators/conv.py", inputs, constants, domain=domain)


def _matmul(zeros: Array, signed: bool) -> Case:
    inputs = {
        "a": bytes_of(2, 5, 40),
        "a_scale": scale(0.02),
        "a_zero": zero(119),
        "b": bytes_of(40, 24, signed=signed),
        "b_scale": scales(24) if zeros.ndim else scale(0.01),
        "b_zero": zeros,
        "y_scale": scale(0.3),
        "y_zero": zero(128),
    }
    constants = tuple(name for name in inputs if name != "a")
    return Case("operators/matmul.py", inputs, constants, domain="")


def _gemm(result: bool) -> Case:
    inputs: dict[str, Array | None] = {
        "a": bytes_of(7, 40),
        "a_scale": scale(0.02),
        "a_zero": zero(119),
        "b": bytes_of(24, 40, signed=True),
        "b_scale": scales(24),
        "b_zero": np.zeros(24, np.int8),
        "c": RNG.integers(-5000, 5000, 24).astype(np.int32),
    }
    if result:
        inputs |= {"y_scale": scale(0.3), "y_zero": zero(128)}
    constants = tuple(name for name in inputs if name != "a")
    attributes = {"alpha": 1.0, "transB": 1}
    return Case("operators/gemm.py", inputs, constants, attributes=attributes)


def _attention(signed: bool, masked: bool) -> Case:
    kind = np.int8 if signed else np.uint8
    inputs = {
        "x": bytes_of(2, 5, 16),
        "w": bytes_of(16, 48, signed=signed),
        "bias": floats(48),
        "x_scale": scale(0.01),
        "w_scale": scale(0.01),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if masked else None,
        "x_zero": zero(120),
        "w_zero": zero(0 if signed else 131, kind),
    }
    constants = "w", "bias", "w_scale", "w_zero"
    return Case("operators/attention.py", inputs, constants, attributes={"num_heads": 4})


def _embedding() -> Case:
    tables = {"words": (30, 16), "places": (12, 16), "segments": (2, 16), "gamma": 16, "beta": 16}
    shapes = {name: (size,) if isinstance(size, int) else size for name, size in tables.items()}
    inputs: dict[str, Array | None] = {
        "ids": RNG.integers(0, 30, (2, 7)).astype(np.int32),
        "kinds": RNG.integers(0, 2, (2, 7)).astype(np.int32),
        **{name: bytes_of(*shape) for name, shape in shapes.items()},
        "mask": np.array([[1] * 5 + [0] * 2, [1] * 7], np.int32),
        **{f"{name}_scale": scale(0.02) for name in shapes},
        **{f"{name}_zero": zero(110 + index) for index, name in enumerate(shapes)},
    }
    constants = tuple(name for name in inputs if name not in ("ids", "kinds", "mask"))
    outputs = "y", "count"
    return Case("operators/embed_layernorm.py", inputs, constants, outputs)


def _dynamic_matmul(bias: bool, unsigned: bool, zeros: bool) -> Case:
    kind = np.uint8 if unsigned else np.int8
    inputs = {
        "a": floats(2, 6, 40),
        "b": bytes_of(40, 24, signed=not unsigned),
        "b_scale": scales(24),
        "b_zero": RNG.integers(0, 100, 24).astype(kind) if zeros else None,
        "bias": floats(24) if bias else None,
    }
    return Case("fused by onnxruntime from operators/matmul.py", inputs, tuple(inputs)[1:])


def _integer_to_float(unsigned: bool) -> Case:
    kind = np.uint8 if unsigned else np.int8
    inputs = {
        "a": bytes_of(2, 6, 40),
        "b": bytes_of(40, 24, signed=not unsigned),
        "a_scale": scale(0.02),
        "b_scale": scales(24),
        "a_zero": zero(99),
        "b_zero": RNG.integers(0, 100, 24).astype(kind),
        "bias": floats(24),
    }
    constants = "b", "b_scale", "b_zero", "bias"
    return Case("fused by onnxruntime from operators/matmul.py", inputs, constants)


def _integers(op_type: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], signed: bool) -> Case:
    kind = np.int8 if signed else np.uint8
    inputs = {
        "x": bytes_of(*shapes[0]),
        "w": bytes_of(*shapes[1], signed=signed),
        "x_zero": zero(119),
        "w_zero": zero(0 if signed else 140, kind),
    }
    path = "operators/matmul.py" if op_type == "MatMulInteger" else "operators/conv.py"
    return Case(path, inputs, ("w", "w_zero"), domain="", steps=0)


def _conversion(op_type: str, dtype: Any, channels: int, domain: str) -> Case:
    given = floats(2, 6, 3) if op_type == "QuantizeLinear" else bytes_of(2, 6, 3).astype(dtype)
    zeros = RNG.integers(0, 100, channels).astype(dtype) if channels else zero(9, dtype)
    inputs = {"x": given, "scale": scales(channels) if channels else scale(0.02), "zero": zeros}
    return Case(
        "qdq_quantizer.py",
        inputs,
        ("scale", "zero"),
        domain=domain,
        steps=0,
        attributes={"axis": 1},
    )


def _nbits() -> Case:
    inputs = {
        "a": floats(1, 3, 64),
        "b": bytes_of(24, 2, 16),
        "scales": scales(48).reshape(24, 2),
        "zeros": bytes_of(24, 1),
    }
    attributes = {"K": 64, "N": 24, "bits": 4, "block_size": 32}
    return Case(
        "matmul_nbits_quantizer.py", inputs, ("b", "scales", "zeros"), attributes=attributes
    )


def _bnb4(kind: int) -> Case:
    inputs = {"a": floats(1, 3, 64), "b": bytes_of(24 * 32), "absmax": scales(24)}
    attributes = {"K": 64, "N": 24, "block_size": 64, "quant_type": kind}
    return Case("matmul_bnb4_quantizer.py", inputs, ("b", "absmax"), attributes=attributes)


def _gather_blocks() -> Case:
    inputs = {
        "data": bytes_of(30, 32),
        "indices": RNG.integers(0, 30, (2, 5)),
        "scales": scales(60).reshape(30, 2),
        "zeros": bytes_of(30, 1),
    }
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 32, "bits": 4}
    return Case(
        "matmul_nbits_quantizer.py", inputs, ("data", "scales", "zeros"), attributes=attributes
    )


def _concat() -> Case:
    inputs = {
        "y_scale": scale(0.03),
        "y_zero": zero(128),
        "a": bytes_of(2, 3, 4),
        "a_scale": scale(0.02),
        "a_zero": zero(100),
        "b": bytes_of(2, 5, 4),
        "b_scale": scale(0.03),
        "b_zero": zero(128),
    }
    constants = tuple(name for name in inputs if "_" in name)
    return Case("operators/concat.py", inputs, constants, attributes={"axis": 1})


def _where() -> Case:
    inputs = {
        "condition": RNG.random((2, 3, 4)) < 0.5,
        "a": bytes_of(2, 3, 4),
        "a_scale": scale(0.02),
        "a_zero": zero(100),
        "b": bytes_of(1, 3, 1),
        "b_scale": scale(0.03),
        "b_zero": zero(128),
        "y_scale": scale(0.03),
        "y_zero": zero(128),
    }
    return Case("operators/where.py", inputs, tuple(name for name in inputs if "_" in name))


def _lstm(channels: bool, both: bool) -> Case:
    """A recurrent net; its tolerance is what the operator rounds of each state, to 8 bits."""
    count, gates = (2 if both else 1), 4 * 12
    shape = (count, gates) if channels else (count,)
    inputs = {
        "x": floats(5, 2, 8),
        "w": bytes_of(count, 8, gates, signed=True),
        "r": bytes_of(count, 12, gates, signed=True),
        "b": floats(count, 2 * gates),
        "lengths": None,
        "h": floats(count, 2, 12),
        "c": floats(count, 2, 12),
        "p": None,
        "w_scale": (0.002 * (1 + RNG.random(shape))).astype(np.float32),
        "w_zero": np.zeros(shape, np.int8),
        "r_scale": (0.002 * (1 + RNG.random(shape))).astype(np.float32),
        "r_zero": np.zeros(shape, np.int8),
    }
    constants = "w", "r", "b", "w_scale", "w_zero", "r_scale", "r_zero"
    attributes = {"hidden_size": 12, "direction": "bidirectional" if both else "forward"}
    outputs = "y", "y_h", "y_c"
    path = "operators/lstm.py"
    return Case(path, inputs, constants, outputs, tolerance=2e-2, attributes=attributes)


_POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}
_IMAGE = (1, 4, 8, 9)
_LAST = (1, 8, 9, 4)
_ZEROS = np.arange(1, 17, dtype=np.uint8) * 10
_CHANNEL_ZEROS = np.arange(1, 17, dtype=np.int8)

CASES: dict[str, Case] = {
    "ConvInteger": _integers("ConvInteger", ((1, 3, 7, 7), (5, 3, 3, 3)), signed=False),
    "ConvInteger int8": _integers("ConvInteger", ((1, 3, 7, 7), (5, 3, 3, 3)), signed=True),
    "DequantizeLinear": _conversion("DequantizeLinear", np.uint8, 0, ""),
    "DequantizeLinear channels": _conversion("DequantizeLinear", np.int8, 6, ""),
    "DequantizeLinear contrib": _conversion("DequantizeLinear", np.uint8, 0, MICROSOFT),
    "DequantizeLinear contrib uint16": _conversion("DequantizeLinear", np.uint16, 0, MICROSOFT),
    "DynamicQuantizeLinear": Case(
        "onnx_quantizer.py", {"x": floats(3, 50)}, (), ("y", "s", "z"), "", steps=0
    ),
    "DynamicQuantizeLSTM": _lstm(channels=False, both=False),
    "DynamicQuantizeLSTM channels": _lstm(channels=True, both=True),
    "DynamicQuantizeMatMul": _dynamic_matmul(bias=True, unsigned=False, zeros=False),
    "DynamicQuantizeMatMul uint8": _dynamic_matmul(bias=False, unsigned=True, zeros=True),
    "GatherBlockQuantized": _gather_blocks(),
    "MatMulBnb4 FP4": _bnb4(0),
    "MatMulBnb4 NF4": _bnb4(1),
    "MatMulInteger": _integers("MatMulInteger", ((2, 5, 40), (40, 24)), signed=False),
    "MatMulInteger int8": _integers("MatMulInteger", ((2, 5, 40), (40, 24)), signed=True),
    "MatMulIntegerToFloat": _integer_to_float(unsigned=False),
    "MatMulIntegerToFloat uint8": _integer_to_float(unsigned=True),
    "MatMulNBits": _nbits(),
    "QAttention": _attention(signed=True, masked=False),
    "QAttention masked": _attention(signed=True, masked=True),
    "QAttention uint8": _attention(signed=False, masked=True),
    "QEmbedLayerNormalization": _embedding(),
    "QGemm": _gemm(result=True),
    "QGemm float": _gemm(result=False),
    "QLinearAdd": _binary("operators/binary_op.py", bytes_of(2, 3, 4)),
    "QLinearAdd broadcast": _binary("operators/binary_op.py", bytes_of(3, 1)),
    "QLinearAveragePool": _unary("operators/pooling.py", bytes_of(*_IMAGE), **_POOL),
    "QLinearAveragePool channels last": _unary(
        "operators/pooling.py", bytes_of(*_LAST), channels_last=1, **_POOL
    ),
    "QLinearConcat": _concat(),
    "QLinearConv": _conv(unsigned=False, zeros=np.zeros(16, np.int8)),
    "QLinearConv int8 zero points": _conv(unsigned=False, zeros=_CHANNEL_ZEROS),
    "QLinearConv uint8": _conv(unsigned=True, zeros=zero(131)),
    "QLinearConv uint8 zero points": _conv(unsigned=True, zeros=_ZEROS),
    "QLinearGlobalAveragePool": _unary("operators/gavgpool.py", bytes_of(*_IMAGE)),
    "QLinearGlobalAveragePool channels last": _unary(
        "operators/gavgpool.py", bytes_of(*_LAST), channels_last=1
    ),
    "QLinearLeakyRelu": _unary("operators/activation.py", bytes_of(2, 30), alpha=0.3),
    "QLinearLeakyRelu int8": _unary(
        "operators/activation.py", bytes_of(2, 30, signed=True), to=-20
    ),
    "QLinearMatMul": _matmul(np.zeros(24, np.int8), signed=True),
    "QLinearMatMul uint8": _matmul(zero(131), signed=False),
    "QLinearMul": _binary("operators/binary_op.py", bytes_of(2, 3, 4)),
    "QLinearSigmoid": _unary(
        "operators/activation.py", bytes_of(2, 30), result_scale=1 / 256, to=0
    ),
    "QLinearSoftmax": _unary(
        "operators/softmax.py", bytes_of(2, 3, 30), result_scale=1 / 256, to=0, axis=-1, opset=13
    ),
    "QLinearSoftmax flat": _unary(
        "operators/softmax.py", bytes_of(2, 3, 5), result_scale=1 / 256, to=0, axis=1, opset=11
    ),
    "QLinearWhere": _where(),
    "QuantizeLinear": _conversion("QuantizeLinear", np.uint8, 0, ""),
    "QuantizeLinear channels": _conversion("QuantizeLinear", np.int8, 6, ""),
    "QuantizeLinear contrib": _conversion("QuantizeLinear", np.uint8, 0, MICROSOFT),
    "QuantizeLinear contrib uint16": _conversion("QuantizeLinear", np.uint16, 0, MICROSOFT),
}
"""By the operator's name, and what is special of the case."""
