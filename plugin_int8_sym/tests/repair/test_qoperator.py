"""Operators that are in the QOperator format, against onnx's evaluator or onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from repair_kit import (
    MICROSOFT,
    XNNPACK,
    evaluated,
    floats,
    integers,
    model,
    node,
    on_onnxruntime,
    repaired,
)

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass.runtime.quantization import PerTokenQuantization, QuantizationSpec

BYTE = {
    "uint8": (np.uint8, 128),
    "int8": (np.int8, 0),
}


def scalars(kind: str, **zeros: int) -> dict[str, object]:
    """Return a scale and a zero point for each of x, z and y, and each name beside them."""
    dtype, middle = BYTE[kind]
    scales = {"xs": 0.02, "zs": 0.03, "ys": 0.05}
    points = {"xz": 5, "zz": -4, "yz": 9, **zeros}
    return {
        **{name: np.float32(scale) for name, scale in scales.items()},
        **{name: dtype(middle + zero) for name, zero in points.items()},
    }


def chain(kind, between, shape, result, *, operands=("x",), more=None, opset=21):
    """Quantize operands, let a node work on the integers, and dequantize them."""
    nodes = [node("QuantizeLinear", [n, f"{n}s", f"{n}z"], f"{n}q") for n in operands]
    nodes += [*between, node("DequantizeLinear", ["yq", "ys", "yz"], "y")]
    known = {**scalars(kind), **(more or {})}
    read = {name for each in nodes for name in each.input}
    constants = {name: value for name, value in known.items() if name in read}
    shapes = dict.fromkeys(operands, shape)
    return model(nodes, shapes, {"y": result}, constants, opset)


def weights(kind, shape, axis=None):
    """Return integers of a weight, with scales and zero points along an axis.

    Signed ones have seven bits: onnxruntime multiplies them with unsigned bytes, two by two, in
    accumulators of 16 bits where the processor has no instruction for 32.
    """
    dtype, middle = BYTE[kind]
    most = 63 if kind == "int8" else 127
    size = () if axis is None else (shape[axis],)
    return {
        "w": integers(dtype, *shape, low=-most, high=most, zero=middle),
        "ws": (0.01 + 0.001 * np.arange(int(np.prod(size)))).astype(np.float32).reshape(size),
        "wz": np.full(size, middle, dtype),
    }


IMAGE = [1, 3, 8, 8]
UNARY = ["xq", "xs", "xz", "ys", "yz"]
BINARY = ["xq", "xs", "xz", "zq", "zs", "zz", "ys", "yz"]
WEIGHTED = ["xq", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
ELEMENTWISE = {
    "QLinearSigmoid": UNARY,
    "QLinearLeakyRelu": UNARY,
    "QLinearGlobalAveragePool": UNARY,
    "QLinearAveragePool": UNARY,
    "QLinearSoftmax": UNARY,
    "QLinearAdd": BINARY,
    "QLinearMul": BINARY,
    "QLinearConcat": ["ys", "yz", "xq", "xs", "xz", "zq", "zs", "zz"],
}
FLOAT = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
    "QLinearSoftmax": "Softmax",
    "QLinearAdd": "Add",
    "QLinearMul": "Mul",
    "QLinearConcat": "Concat",
}
ATTRIBUTES = {
    "QLinearLeakyRelu": {"alpha": 0.2},
    "QLinearAveragePool": {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]},
    "QLinearSoftmax": {"axis": -1, "opset": 21},
    "QLinearConcat": {"axis": 1},
}


@pytest.mark.parametrize("kind", BYTE)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operators_of_onnxruntime(name, kind):
    inputs = ELEMENTWISE[name]
    operands = ("x", "z") if "zq" in inputs else ("x",)
    operator = node(name, inputs, "yq", MICROSOFT, **ATTRIBUTES.get(name, {}))
    proto = chain(kind, [operator], IMAGE, [None] * 4, operands=operands, opset=17)
    found = repaired(proto)
    kinds = found.kinds()
    assert FLOAT[name] in kinds
    assert name not in kinds
    feeds = {each: floats(*IMAGE) for each in operands}
    (right,), (got,) = on_onnxruntime(proto, feeds), on_onnxruntime(found.after, feeds)
    # Accumulators, lookup tables and float32 round differently: at a half, to the other side.
    assert np.abs(got - right).max() <= 0.05 * 1.001
    assert len(np.unique(right)) > 2


@pytest.mark.parametrize("opset", [17, 21])
def test_mean(opset):
    """As it is documented: "Dequantize(Input) -> ReduceMean on fp32 data -> Quantize(output)"."""
    operator = node("QLinearReduceMean", UNARY, "yq", MICROSOFT, axes=[2, 3], keepdims=0)
    proto = chain("uint8", [operator], IMAGE, [1, 3], opset=opset)
    axes = {"axes": [2, 3]} if opset < 18 else {}
    between = [
        node("DequantizeLinear", ["xq", "xs", "xz"], "xf"),
        node("ReduceMean", ["xf", *([] if axes else ["at"])], "h", keepdims=0, **axes),
        node("QuantizeLinear", ["h", "ys", "yz"], "yq"),
    ]
    right = chain("uint8", between, IMAGE, [1, 3], more={"at": np.int64([2, 3])}, opset=opset)
    feeds = {"x": floats(*IMAGE) + np.float32(0.3)}
    np.testing.assert_array_equal(
        on_onnxruntime(repaired(proto).after, feeds)[0], on_onnxruntime(right, feeds)[0]
    )


def test_concat_of_equal_scales_is_the_same():
    """Nothing is computed: not one step."""
    operator = node("QLinearConcat", ["xs", "xz", *["xq", "xs", "xz"] * 2], "yq", MICROSOFT, axis=1)
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        operator,
        node("DequantizeLinear", ["yq", "xs", "xz"], "y"),
    ]
    known = {"xs": np.float32(0.02), "xz": np.uint8(99)}
    proto = model(nodes, {"x": IMAGE}, {"y": [1, 6, 8, 8]}, known)
    feeds = {"x": floats(*IMAGE)}
    found = repaired(proto)
    assert [d.decision for d in found.of("yq")] == ["repaired", "int8"]
    np.testing.assert_array_equal(
        on_onnxruntime(found.after, feeds)[0], on_onnxruntime(proto, feeds)[0]
    )


def test_where():
    operator = node("QLinearWhere", ["c", *BINARY], "yq", MICROSOFT)
    mask = np.arange(8) % 3 == 0
    proto = chain("uint8", [operator], IMAGE, IMAGE, operands=("x", "z"), more={"c": mask})
    feeds = {"x": floats(*IMAGE), "z": floats(*IMAGE)}
    found = repaired(proto)
    assert "Where" in found.kinds()
    (right,), (got,) = on_onnxruntime(proto, feeds), on_onnxruntime(found.after, feeds)
    assert np.abs(got - right).max() <= 0.05 * 1.001


@pytest.mark.parametrize("axis", [None, 0], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(kinds, axis, bias):
    inputs = WEIGHTED + (["b"] if bias else [])
    operator = node("QLinearConv", inputs, "yq", pads=[1, 1, 1, 1], strides=[2, 1])
    more = {**weights(kinds[1], (4, 3, 3, 3), axis), "b": integers(np.int32, 4, low=-900, high=900)}
    proto = chain(kinds[0], [operator], IMAGE, [1, 4, 4, 8], more=more)
    found = repaired(proto)
    assert found.of("yq")[-1].decision == "int8"
    feeds = {"x": floats(*IMAGE)}
    # 27 terms of at most 2⁷·2⁸ are exact in float32's 24 bits, their scaled total is rounded.
    for run in (evaluated, on_onnxruntime):
        (right,), (got,) = run(proto, feeds), run(found.after, feeds)
        assert np.abs(got - right).max() <= 0.05 * 1.001
        assert (got == right).mean() > 0.95
    stored = found.constants()[found.reads("w/DequantizeLinear")[0]]
    assert stored.dtype == np.int8
    assert not found.constants()[found.reads("w/DequantizeLinear")[2]].any()


@pytest.mark.parametrize("axis", [None, 1], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_product(kinds, axis):
    operator = node("QLinearMatMul", WEIGHTED, "yq")
    more = weights(kinds[1], (8, 6), axis)
    proto = chain(kinds[0], [operator], [5, 8], [5, 6], more=more)
    found = repaired(proto)
    assert found.of("yq")[-1].decision == "int8"
    feeds = {"x": floats(5, 8)}
    (right,), (got,) = on_onnxruntime(proto, feeds), evaluated(found.after, feeds)
    assert np.abs(got - right).max() <= 0.05 * 1.001
    assert (got == right).mean() > 0.9


def test_matmul_of_two_activations():
    operator = node("QLinearMatMul", BINARY, "yq")
    proto = chain("uint8", [operator], [8, 8], [8, 8], operands=("x", "z"))
    found = repaired(proto)
    assert found.of("yq")[-1].decision == "int8"
    feeds = {"x": floats(8, 8), "z": floats(8, 8)}
    (right,), (got,) = evaluated(proto, feeds), evaluated(found.after, feeds)
    assert np.abs(got - right).max() <= 0.05 * 1.001


@pytest.mark.parametrize("axis", [None, 0, 1], ids=["per-tensor", "transposed", "per-channel"])
@pytest.mark.parametrize("quantized", [True, False], ids=["integers", "floats"])
def test_gemm(axis, quantized):
    inputs = ["xq", "xs", "xz", "w", "ws", "wz", "b"]
    transposed = int(axis == 0)
    shape = (6, 8) if transposed else (8, 6)
    operator = node(
        "QGemm",
        inputs + (["ys", "yz"] if quantized else []),
        "yq",
        MICROSOFT,
        transB=transposed,
        alpha=0.5,
    )
    more = {**weights("uint8", shape, axis), "b": integers(np.int32, 6, low=-900, high=900)}
    proto = chain("uint8", [operator], [5, 8], [5, 6], more=more)
    if not quantized:
        del proto.graph.node[-1]
        operator.output[0] = proto.graph.node[-1].output[0] = "y"
    found = repaired(proto)
    feeds = {"x": floats(5, 8)}
    (right,), (got,) = on_onnxruntime(proto, feeds), evaluated(found.after, feeds)
    step = 0.05 * 1.001 if quantized else 1e-5 * np.abs(right).max()
    assert np.abs(got - right).max() <= step
    assert [k for k in found.kinds() if k.startswith("Q")] == (
        ["QuantizeLinear"] * 2 if quantized else ["QuantizeLinear"]
    )


def test_conversions_of_onnxruntime():
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq", MICROSOFT),
        node("DequantizeLinear", ["xq", "xs", "xz"], "y", MICROSOFT),
    ]
    known = {"xs": np.float32(0.02), "xz": np.uint8(99)}
    proto = model(nodes, {"x": IMAGE}, {"y": IMAGE}, known)
    found = repaired(proto)
    assert {n.domain for n in found.after.graph.node} == {""}
    feeds = {"x": floats(*IMAGE)}
    np.testing.assert_array_equal(evaluated(found.after, feeds)[0], on_onnxruntime(proto, feeds)[0])


LEFT = {
    "channels-last": (
        node("QLinearConv", WEIGHTED, "yq", MICROSOFT, channels_last=1),
        weights("int8", (3, 8, 1, 1)),
        "channels-last",
    ),
    "a row of scales": (
        node("QLinearMatMul", ["xq", "rs", "rz", "w", "ws", "wz", "ys", "yz"], "yq"),
        {
            **weights("int8", (8, 8)),
            "rs": np.full(8, 0.1, np.float32),
            "rz": np.full(8, 128, np.uint8),
        },
        "8 elements, not one",
    ),
    "an older axis": (
        node("QLinearSoftmax", UNARY, "yq", MICROSOFT, axis=1, opset=11),
        {},
        "operator set 11",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    operator, more, reason = LEFT[name]
    proto = chain("uint8", [operator], IMAGE, [None] * 4, more=more)
    found = repaired(proto)
    assert operator.op_type in found.kinds()
    assert reason in found.of("yq")[0].reason
    assert len([line for line in found.warnings if reason in line]) == 1


def test_operator_sets_without_channels():
    operator = node("QLinearConv", WEIGHTED, "yq")
    more = weights("int8", (4, 3, 3, 3), 0)
    found = repaired(chain("uint8", [operator], IMAGE, [1, 4, 6, 6], more=more, opset=11))
    assert "QLinearConv" in found.kinds()
    assert "upgrade-opset" in found.of("yq")[-1].reason
    per_tensor = weights("int8", (4, 3, 3, 3))
    proto = chain("uint8", [operator], IMAGE, [1, 4, 6, 6], more=per_tensor, opset=11)
    assert "QLinearConv" not in repaired(proto).kinds()


def dynamic(*, bias: bool = False, per_channel: bool = False, convolution: bool = False):
    """Return what onnxruntime's quantize_dynamic emits."""
    shape = (4, 3, 3, 3) if convolution else (8, 6)
    more = weights("uint8", shape, 1 if per_channel else None)
    kind = "ConvInteger" if convolution else "MatMulInteger"
    nodes = [
        node("DynamicQuantizeLinear", ["x"], "xq xs xz"),
        node(kind, ["xq", "w", "xz", "wz"], "sum"),
        node("Cast", ["sum"], "cast", to=1),
        node("Mul", ["xs", "ws"], "scales"),
        node("Mul", ["cast", "scales"], "a" if bias else "y"),
        *([node("Add", ["a", "b"], "y")] if bias else []),
    ]
    constants = {**more, **({"b": floats(6)} if bias else {})}
    dims = IMAGE if convolution else [5, 8]
    return model(nodes, {"x": dims}, {"y": [None] * len(dims)}, constants)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_matmuls(bias, per_channel):
    proto = dynamic(bias=bias, per_channel=per_channel)
    feeds = {"x": floats(5, 8)}
    (right,) = evaluated(proto, feeds)
    plain = repaired(proto, replace(XNNPACK, per_token=PerTokenQuantization()))
    assert plain.kinds()[0] == "DynamicQuantizeLinear"
    assert "MatMulInteger" not in plain.kinds()
    np.testing.assert_allclose(evaluated(plain.after, feeds)[0], right, rtol=1e-4, atol=1e-5)
    asked = repaired(proto)
    assert asked.kinds() == ["DequantizeLinear", "MatMul", *(["Add"] if bias else [])]
    matmul = next(n for n in asked.after.graph.node if n.op_type == "MatMul")
    assert [(p.key, p.value) for p in matmul.metadata_props] == [(ACTIVATIONS, "dynamic")]
    # What is not rounded any more is half a step of each activation.
    steps = (max(feeds["x"].max(), 0) - min(feeds["x"].min(), 0)) / 255
    weight = evaluated(
        model(
            [node("DequantizeLinear", ["w", "ws", "wz"], "y", axis=1)],
            {},
            {"y": None},
            {t: plain_constant(proto, t) for t in ("w", "ws", "wz")},
        ),
        {},
    )[0]
    limit = np.abs(weight).sum(axis=0) * steps * 0.501 + 1e-5
    assert (np.abs(evaluated(asked.after, feeds)[0] - right) <= limit).all()


def plain_constant(proto, name):
    from onnx import numpy_helper

    return next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == name)


def test_dynamic_convolution_keeps_its_rounding():
    proto = dynamic(convolution=True)
    feeds = {"x": floats(*IMAGE)}
    found = repaired(proto)
    assert "ConvInteger" not in found.kinds()
    assert "DynamicQuantizeLinear" in found.kinds()
    np.testing.assert_allclose(
        evaluated(found.after, feeds)[0], evaluated(proto, feeds)[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("asked", [True, False])
def test_dynamic_quantize_matmul(asked):
    inputs = ["x", "w", "ws", "wz", "b"]
    constants = {**weights("int8", (8, 6)), "b": floats(6)}
    nodes = [node("DynamicQuantizeMatMul", inputs, "y", MICROSOFT)]
    proto = model(nodes, {"x": [5, 8]}, {"y": [5, 6]}, constants)
    feeds = {"x": floats(5, 8)}
    found = repaired(proto, XNNPACK if asked else QuantizationSpec())
    (right,), (got,) = on_onnxruntime(proto, feeds), evaluated(found.after, feeds)
    assert ("DynamicQuantizeLinear" in found.kinds()) is not asked
    if asked:
        step = (feeds["x"].max() - feeds["x"].min()) / 255
        columns = np.abs(constants["w"].astype(np.float32) * constants["ws"]).sum(axis=0)
        assert (np.abs(got - right) <= columns * step * 0.501 + 1e-5).all()
    else:
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def test_matmul_integer_to_float():
    nodes = [
        node("DynamicQuantizeLinear", ["x"], "xq xs xz"),
        node("MatMulIntegerToFloat", ["xq", "w", "xs", "ws", "xz", "wz"], "y", MICROSOFT),
    ]
    proto = model(nodes, {"x": [5, 8]}, {"y": [5, 6]}, weights("uint8", (8, 6), 1))
    feeds = {"x": floats(5, 8)}
    found = repaired(proto, QuantizationSpec())
    assert found.kinds() == [
        "DynamicQuantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "MatMul",
    ]
    np.testing.assert_allclose(
        evaluated(found.after, feeds)[0], on_onnxruntime(proto, feeds)[0], rtol=1e-4, atol=1e-5
    )


def test_accumulators_that_others_read_stay():
    nodes = [
        node("DynamicQuantizeLinear", ["x"], "xq xs xz"),
        node("MatMulInteger", ["xq", "w", "xz", "wz"], "sum"),
        node("Cast", ["sum"], "y", to=1),
    ]
    constants = weights("int8", (8, 6))
    found = repaired(model(nodes, {"x": [5, 8]}, {"y": [5, 6]}, constants))
    assert not found.modified
    assert "MatMulInteger" in found.kinds()
    assert "not scaled" in found.of("sum")[0].reason
