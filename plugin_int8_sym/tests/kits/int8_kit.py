"""Small models, and the pass run on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass import Bundle

RNG = np.random.default_rng(77)
Array = np.ndarray[Any, Any]


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str] | None],
    constants: Mapping[str, Array],
    opset: int = 21,
) -> onnx.ModelProto:
    """Build a model of float32; onnx's evaluator has DequantizeLinear from operator set 19 on."""
    for index, node in enumerate(nodes):
        node.name = node.name or f"n{index}"
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 10
    return proto


def build(proto: onnx.ModelProto, text: str = "int8-sym") -> Bundle:
    """Build with the pass, from a model object, which must not change."""
    before = proto.SerializeToString()
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference")
    assert proto.SerializeToString() == before
    return bundle


def rewritten(proto: onnx.ModelProto, text: str = "int8-sym") -> onnx.ModelProto:
    """Return the model after the pass; it is checked, and a second run changes nothing."""
    first = ir.to_proto(build(proto, text).methods["main"])
    onnx.checker.check_model(first, full_check=True)
    again = ir.to_proto(build(first, text).methods["main"])
    assert again.SerializeToString() == first.SerializeToString(), "a second run changes the model"
    return first


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def verdicts(bundle: Bundle) -> dict[str, dict[str, Any]]:
    (part,) = bundle.reports[-1].methods.values()
    return {item["node"]: item for item in part.decisions}
