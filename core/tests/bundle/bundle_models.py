"""Models that tests put into bundles, and ways to look at bundles that use no code of ours."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

COUNT = 1073
"""Elements of the tensors of all types: odd, and at least 256 bytes even at 2 bits each."""

TYPES = [
    name
    for name, number in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and number <= max(ir.DataType)
]
"""Names of every element type that ONNX has, but for strings."""


def random_raw(type_name: str, count: int = COUNT, seed: int = 0) -> bytes:
    """Return serialized elements; every bit pattern that the type has is valid, but for bool."""
    dtype = ir.DataType[type_name]
    size = (count * dtype.bitwidth + 7) // 8
    raw = bytearray(np.random.default_rng(seed).bytes(size))
    if dtype == ir.DataType.BOOL:
        raw = bytearray(byte & 1 for byte in raw)
    spare = size * 8 - count * dtype.bitwidth
    raw[-1] &= 0xFF >> spare  # the bits after the last element are zero
    return bytes(raw)


def raw_tensor(name: str, type_name: str, raw: bytes, dims: list[int]) -> TensorProto:
    return TensorProto(
        name=name, data_type=TensorProto.DataType.Value(type_name), dims=dims, raw_data=raw
    )


def float_tensor(name: str, shape, seed: int = 0) -> TensorProto:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(array, name)


def value(name: str, type_name: str = "FLOAT", shape=None):
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(type_name), shape)


def create(
    nodes, inputs, outputs, initializers=(), *, opset=21, ir_version=10, functions=(), extra=()
):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), *extra]
    model = helper.make_model(
        graph, opset_imports=imports, ir_version=ir_version, functions=list(functions)
    )
    model.producer_name = "test"
    return model


def typed(type_name: str, seed: int = 0, *, opset=28, ir_version=14) -> onnx.ModelProto:
    """Return ``y = Identity(w)`` with `w` of any type."""
    weight = raw_tensor("w", type_name, random_raw(type_name, seed=seed), [29, 37])
    output = value("y", type_name, [29, 37])
    return create(
        [helper.make_node("Identity", ["w"], ["y"])],
        [],
        [output],
        [weight],
        opset=opset,
        ir_version=ir_version,
    )


def linear(seed: int = 0, size: int = 32, name: str = "w") -> onnx.ModelProto:
    """Return ``y = x @ w + b``, `b` small enough to stay inside."""
    return create(
        [
            helper.make_node("MatMul", ["x", name], ["h"]),
            helper.make_node("Add", ["h", "b"], ["y"]),
        ],
        [value("x", shape=["N", size])],
        [value("y", shape=["N", size])],
        [float_tensor(name, (size, size), seed), float_tensor("b", (size,), seed + 1)],
    )


def branches(first: int = 1, second: int = 2) -> onnx.ModelProto:
    """Return an If whose branches both have an initializer ``w``."""

    def branch(seed):
        out = value(f"out{seed}", shape=[16, 16])
        add = helper.make_node("Add", ["x", "w"], [out.name])
        return helper.make_graph(
            [add], f"branch{seed}", [], [out], [float_tensor("w", (16, 16), seed)]
        )

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch(first), else_branch=branch(second)
    )
    inputs = [value("c", "BOOL", []), value("x", shape=[16, 16])]
    return create([node], inputs, [value("y", shape=[16, 16])])


def read(proto: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(proto)


def tree(folder: Path) -> dict[str, str]:
    """Return the hash of each file of a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def initializer_bytes(path: Path) -> dict[str, bytes]:
    """Return the serialized bytes of the main graph's initializers, as onnx alone reads them."""
    model = onnx.load(path)
    return {tensor.name: tensor_bytes(tensor) for tensor in model.graph.initializer}


def tensor_bytes(tensor: TensorProto) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        return b"\0".join(tensor.string_data)
    return (
        tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()
    )
