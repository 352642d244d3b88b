"""What is int8 already stays as it is: scales, conversions and the operators between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fp16_kit import check, constants, floats, model, operators, rewritten, run, verdicts
from onnx import TensorProto, helper

import narrowpass

INT8 = {"zx": np.int8(3), "zw": np.int8(0), "zy": np.int8(-128)}
SCALES = {"sx": np.float32(0.03), "sw": np.float32(0.01), "sy": np.float32(0.05)}


def quantize(source: str, to: str, which: str) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [source, f"s{which}", f"z{which}"], [to], name=to)


def dequantize(source: str, to: str, which: str) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [source, f"s{which}", f"z{which}"], [to], name=to)


def int8_block(*between: onnx.NodeProto, last: str) -> list[onnx.NodeProto]:
    """Return ``x`` through int8 nodes that read ``xf`` (and ``wf``); ``last`` becomes ``yf``."""
    return [
        quantize("x", "xq", "x"),
        dequantize("xq", "xf", "x"),
        dequantize("wq", "wf", "w"),
        *between,
        quantize(last, "yq", "y"),
        dequantize("yq", "yf", "y"),
    ]


def around(nodes: Sequence[onnx.NodeProto], **more: np.ndarray) -> onnx.ModelProto:
    """Let a float MatMul follow int8 nodes."""
    stored = np.random.default_rng(5).integers(-127, 128, (8, 8)).astype(np.int8)
    tail = helper.make_node("MatMul", ["yf", "v"], ["y"], name="float")
    known = {"wq": stored, "v": floats(8, 8), **INT8, **SCALES, **more}
    kept = {name for node in (*nodes, tail) for name in node.input}
    return model(
        [*nodes, tail],
        {"x": [4, 8]},
        {"y": [4, 8]},
        {name: np.asarray(array) for name, array in known.items() if name in kept},
        opset=21,
    )


def node(kind: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), [output], name=output, **attributes)


BLOCKS = {
    "MatMul": ([node("MatMul", ["xf", "wf"], "h")], "h"),
    "Gemm": ([node("Gemm", ["xf", "wf", "b"], "h", transB=1)], "h"),
    "with an activation": (
        [node("MatMul", ["xf", "wf"], "h"), node("Relu", ["h"], "r")],
        "r",
    ),
    "with a bias and an activation": (
        [
            node("MatMul", ["xf", "wf"], "h"),
            node("Add", ["h", "b"], "a"),
            node("Clip", ["a", "low", "high"], "c"),
        ],
        "c",
    ),
    "of two computed operands": ([node("Add", ["xf", "xf"], "h")], "h"),
    "Reshape": ([node("Reshape", ["xf", "size"], "h")], "h"),
    "Softmax": ([node("Softmax", ["xf"], "h")], "h"),
}
CONSTANTS = {
    "b": np.full(8, 0.25, np.float32),
    "low": np.float32(0),
    "high": np.float32(6),
    "size": np.int64([4, 8]),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", BLOCKS)
def test_int8_operators_stay(name, dtype):
    nodes, last = BLOCKS[name]
    proto = around(int8_block(*nodes, last=last), **CONSTANTS)
    narrowed = rewritten(proto, f"fp16{{dtype={dtype}}}")
    types = constants(narrowed)
    assert types["v"] == TensorProto.DataType.Value(dtype.upper())
    assert {types[s] for s in SCALES if s in types} == {TensorProto.FLOAT}
    kept = {n.name: list(n.input) for n in narrowed.graph.node if n.name != "float"}
    # All that was there but the float matmul reads what it read before; there is no cast between.
    assert {n.name: kept[n.name] for n in proto.graph.node if n.name != "float"} == {
        n.name: list(n.input) for n in proto.graph.node if n.name != "float"
    }
    assert operators(narrowed)["Cast"] == 2  # into the matmul and out of it
    found = verdicts(run(proto))
    for inner in nodes:
        assert found[inner.name]["by"] == "quantization"
        assert found[inner.name]["decision"] == "red, wide"
    assert found["float"]["decision"] == "green, narrow"


def test_results_are_near():
    """Integers are the same; the matmul after them is in float16 (half a part in 2048)."""
    nodes, last = BLOCKS["with a bias and an activation"]
    proto = around(int8_block(*nodes, last=last), **CONSTANTS)
    check(proto, {"x": floats(4, 8, scale=1.0)})


def test_a_float_operator_between_int8_ones_is_lowered():
    """A matmul whose result nobody quantizes is float, and so is what stands alone."""
    nodes = [
        quantize("x", "xq", "x"),
        dequantize("xq", "xf", "x"),
        node("MatMul", ["xf", "v"], "yf"),
    ]
    narrowed = rewritten(around(nodes))
    assert constants(narrowed)["v"] == TensorProto.FLOAT16
    assert constants(narrowed)["sx"] == TensorProto.FLOAT
    found = verdicts(run(around(nodes)))
    assert [found[n]["decision"] for n in ("xq", "xf", "yf", "float")] == [
        "red, wide",
        "red, wide",
        "green, narrow",
        "green, narrow",
    ]


def test_a_longer_float_part_is_lowered():
    """What is between is no one operator: two matmuls, of which the first is not quantized."""
    between = [node("MatMul", ["xf", "wf"], "h"), node("MatMul", ["h", "v"], "r")]
    proto = around(int8_block(*between, last="r"))
    found = verdicts(run(proto, "fp16{green=[h]}"))
    assert found["r"]["decision"] == "green, narrow"
    assert found["h"]["decision"] == "green, narrow"


def test_named_nodes_are_lowered_all_the_same():
    nodes, last = BLOCKS["MatMul"]
    proto = around(int8_block(*nodes, last=last))
    assert verdicts(run(proto, "fp16{green=[h]}"))["h"]["decision"] == "green, narrow"


def test_scales_of_qlinear_operators_stay():
    """Operator set 21 lets scales of QLinearMatMul be float16; backends do not."""
    nodes = [
        quantize("x", "xq", "x"),
        node("QLinearMatMul", ["xq", "sx", "zx", "wq", "sw", "zw", "sy", "zy"], "yq"),
        dequantize("yq", "yf", "y"),
    ]
    narrowed = rewritten(around(nodes))
    assert constants(narrowed)["v"] == TensorProto.FLOAT16
    assert {constants(narrowed)[scale] for scale in SCALES} == {TensorProto.FLOAT}


def test_behind_int8_sym():
    pytest.importorskip("narrowpass_int8_sym")
    nodes = [node("Conv", ["x", "w"], "h"), node("MatMul", ["h", "v"], "r")]
    nodes += [node("Mul", ["r", "r"], "s"), node("MatMul", ["s", "r"], "y")]
    proto = model(
        nodes,
        {"x": [1, 8, 8, 8]},
        {"y": [1, 8, 8, 8]},
        {"w": floats(8, 8, 1, 1), "v": floats(8, 8)},
        opset=21,
    )
    types = constants(rewritten(proto, "int8-sym{mode=weight-only,red=[r]},fp16"))
    assert types["w.int8"] == TensorProto.INT8
    assert types["w.scale"] == TensorProto.FLOAT
    assert types["v"] == TensorProto.FLOAT16


def test_behind_static_quantization(monkeypatch, tmp_path):
    """What int8-sym leaves float is lowered, with casts around it; int8 stays between Q/DQ."""
    pytest.importorskip("narrowpass_int8_sym")
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    nodes = [
        node("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], "r"),
        node("Conv", ["r", "v"], "d"),
        node("Conv", ["d", "u"], "y"),
    ]
    weights = {"w": floats(8, 8, 3, 3), "v": floats(8, 8, 1, 1), "u": floats(8, 8, 1, 1)}
    proto = model(nodes, {"x": [1, 8, 8, 8]}, {"y": [1, 8, 8, 8]}, weights, opset=21)
    samples = [{"x": floats(1, 8, 8, 8, scale=1.0)} for _ in range(3)]

    def build(given: onnx.ModelProto, text: str) -> onnx.ModelProto:
        bundle = narrowpass.build(
            ir.from_proto(given), text, target="reference", calibration=samples
        )
        return ir.to_proto(bundle.methods["main"])

    narrowed = build(proto, "int8-sym{mode=static,red=[d]},fp16")
    types = constants(narrowed)
    assert types["v"] == TensorProto.FLOAT16
    assert {types[name] for name in types if name.endswith(".scale")} == {TensorProto.FLOAT}
    makers = {name: n for n in narrowed.graph.node for name in n.output}
    for each in narrowed.graph.node:
        if each.op_type == "QuantizeLinear" and each.input[0] != "x":
            assert makers[each.input[0]].op_type in ("Relu", "Conv", "Cast")
        if each.op_type == "Conv" and each.name != "d":
            assert makers[each.input[0]].op_type == "DequantizeLinear"
    assert [makers[n.input[0]].op_type for n in narrowed.graph.node if n.name == "d"] == ["Cast"]
    assert build(narrowed, "fp16").SerializeToString() == narrowed.SerializeToString()
