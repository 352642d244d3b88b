"""Small models, what the pass emits for them, and decoding of 4-bit weights by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import passes_kit
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_kit import run_onnxruntime
from passes_kit import build, rewritten
from passes_kit import verdicts as decisions

__all__ = ["build", "decisions", "rewritten"]

RNG = np.random.default_rng(4)
Array = np.ndarray[Any, Any]
KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
}


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    constants: Mapping[str, Array],
    opset: int = 21,
    integers: Sequence[str] = (),
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    types = dict.fromkeys(integers, TensorProto.INT64)
    version = 10 if opset >= 21 else 8
    return passes_kit.model(
        nodes, inputs, outputs, constants, opset, types=types, dtype=dtype, ir_version=version
    )


def matmul(k: int, n: int, weight: Array | None = None, **options: Any) -> onnx.ModelProto:
    """Return a MatMul, which is the head of its model."""
    constants = {"w": floats(k, n) if weight is None else weight}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], {"x": ["m", k]}, {"y": ["m", n]}, constants, **options)


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    """Return the constants, and those that are cast from one."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for node in _casts(proto):
        dtype = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
        found[node.output[0]] = found[node.input[0]].astype(dtype)
    return found


def _casts(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that cast stored scales."""
    names = {tensor.name for tensor in proto.graph.initializer if ".scale" in tensor.name}
    return [node for node in proto.graph.node if node.op_type == "Cast" and node.input[0] in names]


def kinds(proto: onnx.ModelProto) -> list[str]:
    """Return the operators in order, without casts of stored scales."""
    casts = [node.name for node in _casts(proto)]
    return [node.op_type for node in proto.graph.node if node.name not in casts]


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array], *, optimize: bool = False) -> Array:
    """Run a model on onnxruntime; unoptimized, it computes each node as it stands."""
    return run_onnxruntime(proto, feeds, optimized=optimize)[0]


def decoded(proto: onnx.ModelProto, name: str, axis: int, block: int) -> Array:
    """Return the weight that a blocked DequantizeLinear stands for, by numpy."""
    found = constants(proto)
    stored = next(found[f"{name}.{kind}"] for kind in ("int4", "int8") if f"{name}.{kind}" in found)
    integers = stored.astype(np.float64)
    size = integers.shape[axis]

    def spread(array: Array) -> Array:
        return np.repeat(array.astype(np.float64), block, axis=axis).take(range(size), axis=axis)

    zero = found.get(f"{name}.zero_point")
    return (integers - (0 if zero is None else spread(zero))) * spread(found[f"{name}.scale"])


def decoded_nbits(proto: onnx.ModelProto) -> Array:
    """Return the matrix [N, K] that the MatMulNBits of a model multiplies with, by numpy."""
    found = constants(proto)
    node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    packed = found[node.input[1]]
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:2], -1)
    if given["bits"] == 8:
        numbers = packed
    zero: Any = 1 << (given["bits"] - 1)
    if len(node.input) > 3 and node.input[3]:
        zeros = found[node.input[3]]
        if zeros.dtype == np.uint8:
            zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(len(zeros), -1)
        zero = zeros[:, : packed.shape[1], None].astype(np.float64)
    wide = (numbers.astype(np.float64) - zero) * found[node.input[2]].astype(np.float64)[..., None]
    return wide.reshape(given["N"], -1)[:, : given["K"]]
