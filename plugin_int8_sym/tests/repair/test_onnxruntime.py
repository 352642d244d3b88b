"""What onnxruntime's quantizer writes, repaired: compared with onnxruntime on the same images."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from repair_kit import XNNPACK, Limited, evaluated, floats, model, node, on_onnxruntime, repaired

from narrowpass import Context, Samples, load_plugins
from narrowpass.runtime.quantization import QuantizationSpec
from narrowpass_testing import run_pass

IMAGE = [1, 3, 16, 16]


def classifier():
    """Build a float model with the operators that quantizers treat in ways of their own."""
    constants = {
        "w1": floats(8, 3, 3, 3, scale=0.2),
        "b1": floats(8, scale=0.1),
        "w2": floats(8, 1, 3, 3, scale=0.3),
        "b2": floats(8, scale=0.1),
        "w3": floats(8, 8, 1, 1, scale=0.3),
        "size": np.int64([1, 16]),
        "w4": floats(16, 10, scale=0.2),
        "b4": floats(10),
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], "r1"),
        node("MaxPool", ["r1"], "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2", "b2"], "c2", pads=[1, 1, 1, 1], group=8),
        node("Clip", ["c2", "low", "high"], "k2"),
        node("Conv", ["k2", "w3"], "c3"),
        node("Add", ["c3", "p1"], "s3"),
        node("LeakyRelu", ["s3"], "l3", alpha=0.1),
        node("Concat", ["l3", "p1"], "j3", axis=1),
        node("GlobalAveragePool", ["j3"], "g3"),
        node("Reshape", ["g3", "size"], "f3"),
        node("Gemm", ["f3", "w4", "b4"], "g4"),
        node("Softmax", ["g4"], "y"),
    ]
    constants |= {"low": np.float32(0), "high": np.float32(6)}
    return model(nodes, {"x": IMAGE}, {"y": [1, 10]}, constants, opset=17)


@pytest.fixture
def quantized(tmp_path):
    """Return a function that quantizes the model in one of onnxruntime's ways."""
    pytest.importorskip("onnxruntime")
    quantization = pytest.importorskip("onnxruntime.quantization")
    images = [{"x": floats(*IMAGE)} for _ in range(4)]

    class Images(quantization.CalibrationDataReader):
        def __init__(self):
            self.rest = iter(images)

        def get_next(self):
            return next(self.rest, None)

    def run(form, activations, weights, **options):
        source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
        onnx.save(classifier(), source)
        kind = quantization.QuantType
        if form == "dynamic":
            quantization.quantize_dynamic(source, target, weight_type=kind[weights], **options)
        else:
            quantization.quantize_static(
                source,
                target,
                Images(),
                quant_format=quantization.QuantFormat[form],
                activation_type=kind[activations],
                weight_type=kind[weights],
                **options,
            )
        proto = onnx.load(target)
        proto.ir_version = 10
        return proto, images[0]

    return run


KINDS = [("QUInt8", "QUInt8"), ("QUInt8", "QInt8"), ("QInt8", "QInt8")]
COMMON = {"reduce_range": True}
"""onnxruntime's accumulators are 16 bits wide where the processor has no instruction for 32."""


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_static(quantized, form, activations, weights, per_channel):
    proto, feeds = quantized(form, activations, weights, per_channel=per_channel, **COMMON)
    found = repaired(proto)
    kinds = set(found.kinds())
    assert not {kind for kind in kinds if kind.startswith("QLinear") or kind == "QGemm"}
    assert {n.domain for n in found.after.graph.node} == {""}
    (right,), (got,) = on_onnxruntime(proto, feeds), on_onnxruntime(found.after, feeds)
    # A step of the last quantization, of Softmax; one of an earlier one moves less than that.
    assert np.abs(got - right).max() <= 2 / 255
    if form == "QDQ":
        # Integers multiply as they did; only the signs of bytes are others.
        np.testing.assert_array_equal(got, right)
    weighted = [d for d in found.decisions if d.op_type in ("Conv", "Gemm")]
    last = {d.node: d for d in weighted}
    asymmetric = {d.node for d in weighted if d.reason.startswith("zero point of the weight")}
    # onnxruntime emits uint8 weights with zero points between: they are what is left.
    assert {name for name, d in last.items() if d.decision != "int8"} == asymmetric
    assert bool(asymmetric) <= (weights == "QUInt8")
    assert len(last) == 4


@pytest.mark.parametrize("weights", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("rows", [True, False])
def test_dynamic(quantized, weights, rows):
    proto, feeds = quantized("dynamic", "", weights, per_channel=False, **COMMON)
    assert any(n.op_type == "ConvInteger" for n in proto.graph.node)
    found = repaired(proto, XNNPACK if rows else QuantizationSpec())
    assert not {"ConvInteger", "MatMulInteger"} & set(found.kinds())
    (right,), (got,) = on_onnxruntime(proto, feeds), on_onnxruntime(found.after, feeds)
    np.testing.assert_allclose(got, right, atol=2e-2 if rows else 1e-5)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_on_the_evaluator(quantized, form):
    """The repaired model has operators of ONNX alone, and computes the same on its evaluator."""
    proto, feeds = quantized(form, "QUInt8", "QInt8", per_channel=True, **COMMON)
    upgraded = onnx.version_converter.convert_version(repaired(proto).after, 21)
    (right,), (got,) = on_onnxruntime(proto, feeds), evaluated(upgraded, feeds)
    assert np.abs(got - right).max() <= 2 / 255


def test_conversions_of_other_widths(quantized):
    """16 bits are onnxruntime's own: these are left, and said to be."""
    proto, _ = quantized("QDQ", "QUInt16", "QInt8")
    found = repaired(proto)
    assert any("uint16, not 8 bits" in each.reason for each in found.decisions)


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("activations", ["affine", "symmetric"])
def test_what_int8_sym_writes_is_right_already(weights, activations):
    """Two ways to ask a target the same: the pass that chooses scales, and the one that checks."""
    text = f"int8-sym{{mode=static,weights={weights},activations={activations}}}"
    samples = [{"x": floats(*IMAGE)} for _ in range(3)]
    registry = load_plugins().registry
    ctx = Context(Limited(XNNPACK), registry.classifiers, Samples("images", lambda: samples))
    simplified = run_pass(text, ir.from_proto(classifier()), ctx=ctx, registry=registry).model
    found = repaired(ir.to_proto(simplified))
    assert not found.modified
    assert not found.warnings
    weighted = [d for d in found.decisions if d.op_type in ("Conv", "Gemm")]
    assert [d.decision for d in weighted] == ["int8"] * 4
