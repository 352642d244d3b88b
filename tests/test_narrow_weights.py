"""Passes that narrow weights, one after the other: no cast of a weight is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass

Array = np.ndarray[Any, Any]

pytest.importorskip("narrowpass_fp16")
pytest.importorskip("narrowpass_xnn_cpu")

WIDTH, HEADS, ROWS = 48, 4, 6
IDS = {"ids": np.array([[3, 1, 60, 7, 7, 0]], np.int64)}
HALF, BFLOAT, FLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT


def transformer(layers: int = 3, opset: int = 18) -> onnx.ModelProto:
    """Build an encoder: embeddings; attention, two matmuls and wide normalizations per layer."""
    rng = np.random.default_rng(5)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {
        "table": rng.standard_normal((64, WIDTH)).astype("f4"),
        "split": np.array([0, 0, HEADS, WIDTH // HEADS]),
        "join": np.array([0, 0, WIDTH]),
        "root": np.float32((WIDTH // HEADS) ** -0.5),
        "two": np.float32(2),
        "eps": np.float32(1e-12),
    }

    def add(op: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs.split(), output.split(), output, **attributes))
        return output

    def linear(x: str, y: str, out: int = WIDTH, into: int = WIDTH) -> str:
        weights[f"{y}.w"] = (rng.standard_normal((into, out)) * into**-0.5).astype("f4")
        weights[f"{y}.b"] = (rng.standard_normal(out) * 0.1).astype("f4")
        add("MatMul", f"{x} {y}.w", f"{y}.m")
        return add("Add", f"{y}.m {y}.b", y)

    def normalized(x: str, y: str) -> str:
        """Write a normalization as exporters did, with an epsilon that float16 has not."""
        weights[f"{y}.s"] = np.ones(WIDTH, "f4")
        add("ReduceMean", x, f"{y}.mean", axes=[-1])
        add("Sub", f"{x} {y}.mean", f"{y}.d")
        add("Pow", f"{y}.d two", f"{y}.q")
        add("ReduceMean", f"{y}.q", f"{y}.v", axes=[-1])
        add("Add", f"{y}.v eps", f"{y}.e")
        add("Sqrt", f"{y}.e", f"{y}.r")
        add("Div", f"{y}.d {y}.r", f"{y}.n")
        return add("Mul", f"{y}.n {y}.s", y)

    last = normalized(add("Gather", "table ids", "embedded"), "l.n")
    for i in range(layers):
        for name in "qkv":
            add("Reshape", f"{linear(last, f'{name}{i}')} split", f"{name}{i}.h")
        add("Transpose", f"q{i}.h", f"q{i}.t", perm=[0, 2, 1, 3])
        add("Transpose", f"k{i}.h", f"k{i}.t", perm=[0, 2, 3, 1])
        add("Transpose", f"v{i}.h", f"v{i}.t", perm=[0, 2, 1, 3])
        add("MatMul", f"q{i}.t k{i}.t", f"s{i}")
        add("Mul", f"s{i} root", f"s{i}.r")
        add("Softmax", f"s{i}.r", f"p{i}")
        add("MatMul", f"p{i} v{i}.t", f"c{i}")
        add("Transpose", f"c{i}", f"c{i}.t", perm=[0, 2, 1, 3])
        add("Reshape", f"c{i}.t join", f"c{i}.j")
        add("Add", f"{linear(f'c{i}.j', f'o{i}')} {last}", f"a{i}")
        last = normalized(f"a{i}", f"m{i}")
        add("Relu", linear(last, f"f{i}", 2 * WIDTH), f"g{i}")
        add("Add", f"{linear(f'g{i}', f'u{i}', WIDTH, 2 * WIDTH)} {last}", f"z{i}")
        last = normalized(f"z{i}", f"n{i}")
    if opset >= 18:
        weights["last"] = np.array([-1])
        for node in nodes:
            if node.op_type == "ReduceMean":
                del node.attribute[:]
                node.input.append("last")
    add("Identity", last, "y")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, ROWS])],
        [helper.make_tensor_value_info("y", FLOAT, [1, ROWS, WIDTH])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    return model


def built(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    if "fold" in text:
        pytest.importorskip("narrowpass_constant_folding")
    bundle = narrowpass.build(ir.from_proto(model), text, target="reference")
    proto = ir.to_proto(bundle.methods["main"])
    onnx.checker.check_model(proto, full_check=True)
    return proto


def casts(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.node)


def casts_of_weights(model: onnx.ModelProto) -> int:
    stored = {tensor.name for tensor in model.graph.initializer}
    return sum(node.op_type == "Cast" and node.input[0] in stored for node in model.graph.node)


def types(model: onnx.ModelProto) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def agree(proto: onnx.ModelProto, model: onnx.ModelProto, tolerance: float) -> None:
    (right,), (got,) = (ReferenceEvaluator(each).run(None, IDS) for each in (model, proto))
    assert got.dtype == right.dtype
    np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance * np.abs(right).max())


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_fp16_takes_weights_that_are_stored_narrow(stored):
    model = transformer()
    alone = built(model, "fp16")
    proto = built(model, f"store-weights{{dtype={stored}}},fp16")
    assert casts_of_weights(proto) == 0
    assert casts(proto) == casts(alone)
    names = {tensor.name for tensor in proto.graph.initializer}
    assert names == {tensor.name for tensor in alone.graph.initializer}
    assert types(proto) == types(alone)
    agree(proto, model, 5e-2 if stored == "bfloat16" else 1e-2)
    again = built(proto, "fp16")
    assert again.SerializeToString() == proto.SerializeToString()


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_bfloat16_takes_them_too(stored):
    model = transformer()
    text = "fp16{dtype=bfloat16}"
    alone = built(model, text)
    proto = built(model, f"store-weights{{dtype={stored}}},{text}")
    assert casts_of_weights(proto) == 0
    assert casts(proto) == casts(alone)
    assert types(proto) == types(alone)


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("store-weights,fp16,fold", "fp16,fold"),
        ("fp16,store-weights", "fp16"),
        ("fp16,store-weights,fold", "fp16,fold"),
        ("fold,store-weights,fp16", "fold,fp16"),
        ("store-weights{dtype=bfloat16},fp16,fold", "fp16,fold"),
    ],
)
def test_orders_of_passes(text, alone):
    model = transformer()
    proto = built(model, text)
    assert not [t.name for t in proto.graph.initializer if t.data_type == FLOAT and len(t.dims) > 1]
    assert casts_of_weights(proto) == 0
    assert casts(proto) == casts(built(model, alone))
    agree(proto, model, 5e-2 if "bfloat16" in text else 1e-2)


def test_a_weight_in_both_types_keeps_the_cast_of_one():
    model = transformer(1)
    wide = "fp16{red=[q0.m]}"
    proto = built(model, f"store-weights,{wide}")
    assert casts_of_weights(proto) == 1
    assert types(proto)["q0.w"] == HALF
    agree(proto, model, 1e-2)
