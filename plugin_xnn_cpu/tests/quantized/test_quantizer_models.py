"""Models that onnxruntime's tools quantize, on the same files as onnxruntime.

Integers are those of the model. Float32 rounding of requantized accumulators may take an
activation that lies at a half to the next byte in one of both: 5e-3 of the largest element for
three layers at run time,
and one step of the last layer on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from contrib_kit import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import close, compile_model

import narrowpass
from narrowpass_xnn_cpu.backend import XnnCpuBackend

pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")
RNG = np.random.default_rng(21)
KINDS = [(signed, channels) for signed in (True, False) for channels in (False, True)]


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def model_of(nodes: list[Any], x: list[int | str], constants: Mapping[str, Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Add", ["a", "b1"], ["b"], "bias"),
        helper.make_node("Relu", ["b"], ["c"], "relu"),
        helper.make_node("MatMul", ["c", "w2"], ["y"], "second"),
    ]
    constants = {"w1": floats(40, 70) + 0.5, "b1": floats(70), "w2": floats(70, 19)}
    return model_of(nodes, ["N", 40], constants)


def images() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2", "b2"], ["c"], "deep", pads=[1] * 4, group=16),
        helper.make_node("Conv", ["c", "w3"], ["d"], "last"),
        helper.make_node("Add", ["d", "b"], ["e"], "sum"),
        helper.make_node("GlobalAveragePool", ["e"], ["y"], "mean"),
    ]
    constants = {
        "w1": floats(16, 3, 3, 3) + 0.3,
        "b1": floats(16),
        "w2": floats(16, 1, 3, 3) - 0.3,
        "b2": floats(16),
        "w3": floats(16, 16, 1, 1, scale=0.3),
    }
    return model_of(nodes, [1, 3, 20, 20], constants)


MODELS = {"perceptron": (perceptron, (7, 40)), "images": (images, (1, 3, 20, 20))}


def quantized_at_run_time(name: str, folder: Path, signed: bool, channels: bool) -> Path:
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(MODELS[name][0](), source)
    kind = quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8
    quantization.quantize_dynamic(source, target, weight_type=kind, per_channel=channels)
    return target


class Reader(quantization.CalibrationDataReader):
    """A reader of some calibration inputs, then None."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left = [{"x": floats(*shape)} for _ in range(6)]

    def get_next(self) -> Any:
        """Return the next one."""
        return self._left.pop() if self._left else None


def is_native(program: narrowpass.Program) -> bool:
    return not [
        plan for plan in program.explain() if plan.reason or plan.kernel.startswith("numpy")
    ]


@pytest.mark.parametrize("pipeline", ["", "fold", None], ids=["as it is", "fold", "default"])
@pytest.mark.parametrize(("signed", "channels"), KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_models_quantized_at_run_time(name, signed, channels, pipeline, tmp_path):
    if pipeline == "fold":
        pytest.importorskip("narrowpass_constant_folding")
    path = quantized_at_run_time(name, tmp_path, signed, channels)
    feeds = {"x": floats(*MODELS[name][1])}
    (expected,) = onnxruntime_results(onnx.load(path), feeds)
    bundle = narrowpass.build({"main": onnx.load(path)}, pipeline, target="xnn-cpu")
    with narrowpass.load(bundle, "xnn-cpu", threads=1) as program:
        assert is_native(program)
        got = program.run(feeds)["y"]
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("given", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("weight", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("channels", [False, True])
def test_models_quantized_on_data(form, given, weight, channels, tmp_path):
    if (given, weight) == ("QInt8", "QUInt8"):
        pytest.skip("onnxruntime has no kernels for it")
    source, path = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save(images(), source)
    quantization.quantize_static(
        source,
        path,
        Reader((1, 3, 20, 20)),
        quant_format=quantization.QuantFormat[form],
        activation_type=quantization.QuantType[given],
        weight_type=quantization.QuantType[weight],
        per_channel=channels,
    )
    model, feeds = onnx.load(path), {"x": floats(1, 3, 20, 20)}
    (expected,) = onnxruntime_results(model, feeds)
    scales = {t.name: float(numpy_helper.to_array(t).max()) for t in model.graph.initializer}
    step = next(scales[name] for name in scales if name.startswith("y_scale"))
    with compile_model(model) as program:
        convolutions = [plan.kernel for plan in program.explain() if "Conv" in plan.op_type]
        got = program.run(feeds)["y"]
    assert convolutions
    assert all("int8" in kernel and "float32" not in kernel for kernel in convolutions)
    # A byte of an inner layer may be the next one; of its mean at most one step is left.
    assert np.abs(got - expected).max() <= 1.001 * step


def test_sizes_that_change_and_a_tensor_of_zeros(tmp_path):
    path = quantized_at_run_time("perceptron", tmp_path, True, False)
    model = onnx.load(path)
    with compile_model(model) as program:
        for x in (floats(3, 40), floats(1, 40), np.zeros((2, 40), np.float32), floats(0, 40)):
            got = program.run({"x": x})["y"]
            if x.size == 0:
                assert got.shape == (0, 19)
                continue
            (expected,) = onnxruntime_results(model, {"x": x})
            close(got, expected, 5e-3)


def test_a_range_that_is_not_finite_follows_the_formula():
    """Scale infinite, zero point 0: all bytes are 0, or those of NaN, which count as least."""
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = [onnx.ValueInfoProto(name=name) for name in ("q", "s", "z")]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    graph = helper.make_graph([node], "g", given, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with compile_model(model) as program:
        got = program.run({"x": np.float32([1, np.inf, -2, 0])})
    assert np.isinf(got["s"])
    assert got["z"] == 0
    assert got["q"].dtype == np.uint8
    np.testing.assert_array_equal(got["q"][[0, 2, 3]], [0, 0, 0])


def test_many_threads_find_the_range_that_one_does():
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = [onnx.ValueInfoProto(name=name) for name in ("q", "s", "z")]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])]
    graph = helper.make_graph([node], "g", given, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with compile_model(model, threads=3) as program:
        for count in (1, 16384, 16385, 300_001):
            x = floats(count)
            expected = onnxruntime_results(model, {"x": x})
            got = program.run({"x": x})
            for name, right in zip(("q", "s", "z"), expected, strict=True):
                np.testing.assert_array_equal(got[name], right)


def test_weights_as_pytorch_exports_them_are_int8_without_a_pass():
    """Floats that the model quantizes by channel; -128 is among the integers."""
    weight = RNG.integers(-128, 128, (8, 4, 3, 3)).astype(np.int8)
    weight[:, 0, 0, 0] = -128
    scales = (0.01 * (1 + RNG.random(8))).astype(np.float32)
    constants = {
        "w": weight.astype(np.float32) * scales[:, None, None, None],
        "ws": scales,
        "wz": np.zeros(8, np.int8),
        "s": np.float32(0.03),
        "z": np.int8(-5),
        "os": np.float32(0.3),
        "oz": np.int8(7),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], axis=0),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "wd"], ["c"], "conv"),
        helper.make_node("QuantizeLinear", ["c", "os", "oz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "os", "oz"], ["y"]),
    ]
    model = model_of(nodes, [1, 4, 9, 9], constants)
    feeds = {"x": floats(1, 4, 9, 9)}
    (expected,) = onnxruntime_results(model, feeds)
    with compile_model(model) as program:
        (kernel,) = [plan.kernel for plan in program.explain() if plan.op_type == "Conv"]
        got = program.run(feeds)["y"]
    assert kernel.removeprefix("xnn ") == "convolution int8"
    assert np.abs(got - expected).max() <= 0.3 * 1.001


def test_the_default_pipeline_repairs_quantized_models():
    backend = XnnCpuBackend()
    both = backend.default_pipeline({"fold", "repair-quantized", "fp16"})
    assert both == "fold,repair-quantized{dynamic=keep}"
    assert backend.default_pipeline({"repair-quantized"}) == "repair-quantized{dynamic=keep}"
    assert backend.default_pipeline({"fold"}) == "fold"
    assert backend.default_pipeline(()) == ""


def test_means_of_bytes():
    """QLinearReduceMean, of which onnxruntime's CPU has no kernel, against its definition."""
    x = RNG.integers(0, 256, (2, 5, 6)).astype(np.uint8)
    constants = {
        "xs": np.float32(0.03),
        "xz": np.uint8(9),
        "ys": np.float32(0.02),
        "yz": np.uint8(120),
    }
    node = helper.make_node(
        "QLinearReduceMean",
        ["x", "xs", "xz", "ys", "yz"],
        ["y"],
        domain="com.microsoft",
        axes=[1],
        keepdims=0,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 5, 6])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [2, 6])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    with compile_model(model) as program:
        got = program.run({"x": x})["y"]
    real = (0.03 * (x.astype(np.float64) - 9)).mean(1)
    right = np.clip(np.rint(real / 0.02) + 120, 0, 255)
    assert np.abs(got.astype(int) - right).max() <= 1
