"""Small models, what the pass emits for them, and decoding of 4-bit weights by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass import Bundle

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
    for index, node in enumerate(nodes):
        node.name = node.name or f"n{index}"
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n in integers else dtype, s)
            for n, s in inputs.items()
        ],
        [helper.make_tensor_value_info(n, dtype, s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    found = helper.make_model(graph, opset_imports=imports)
    found.ir_version = 10 if opset >= 21 else 8
    return found


def matmul(k: int, n: int, weight: Array | None = None, **options: Any) -> onnx.ModelProto:
    """Return a MatMul, which is the head of its model."""
    constants = {"w": floats(k, n) if weight is None else weight}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], {"x": ["m", k]}, {"y": ["m", n]}, constants, **options)


def build(proto: onnx.ModelProto, text: str, samples: Iterable[Any] | None = None) -> Bundle:
    """Build with the pass, from a model object, which must not change."""
    before = proto.SerializeToString()
    given = None if samples is None else list(samples)
    bundle = narrowpass.build(
        ir.from_proto(proto),
        text,
        target="reference",
        calibration=None if given is None else (lambda: iter(given)),
    )
    assert proto.SerializeToString() == before
    return bundle


def rewritten(
    proto: onnx.ModelProto, text: str, samples: Iterable[Any] | None = None
) -> onnx.ModelProto:
    """Return the model after the pass; it is checked, and a second run changes nothing."""
    given = None if samples is None else list(samples)
    first = ir.to_proto(build(proto, text, given).methods["main"])
    onnx.checker.check_model(first, full_check=True)
    again = ir.to_proto(build(first, text, given).methods["main"])
    assert again.SerializeToString() == first.SerializeToString(), "a second run changes the model"
    return first


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


def decisions(bundle: Bundle) -> dict[str, dict[str, Any]]:
    (part,) = bundle.reports[-1].methods.values()
    return {item["node"]: item for item in part.decisions}


def kinds(proto: onnx.ModelProto) -> list[str]:
    """Return the operators in order, without casts of stored scales."""
    casts = [node.name for node in _casts(proto)]
    return [node.op_type for node in proto.graph.node if node.name not in casts]


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array], *, optimize: bool = False) -> Array:
    """Run a model on onnxruntime; unoptimized, it computes each node as it stands."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feeds))[0]


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
