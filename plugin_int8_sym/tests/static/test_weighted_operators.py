"""Static int8 of matmuls and convolutions with constant weights: biases and activations."""

from __future__ import annotations

import numpy as np
import pytest
from int8_kit import floats
from static_kit import assert_runs_elsewhere, graph, quantized

from narrowpass.errors import NarrowpassError


def images(*shape, count=3, name="x"):
    return [{name: floats(*shape)} for _ in range(count)]


CONVOLUTIONS = {
    "one dimension": ("", "[2,6,20]", (8, 6, 3), "float[2,8,18]"),
    "two": ("<pads = [1,1,1,1]>", "[2,6,9,9]", (8, 6, 3, 3), "float[2,8,9,9]"),
    "depthwise": ("<group = 6>", "[2,6,9,9]", (6, 1, 3, 3), "float[2,6,7,7]"),
    "grouped": ("<group = 2>", "[2,6,9,9]", (8, 3, 3, 3), "float[2,8,7,7]"),
    "strided": ("<strides = [2,2]>", "[2,6,9,9]", (8, 6, 3, 3), "float[2,8,4,4]"),
}


@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, activation):
    attributes, image, shape, result_type = CONVOLUTIONS[name]
    after = {"": "Identity (h)", "Relu": "Relu (h)", "Clip": "Clip (h, low, high)"}[activation]
    text = f"""g (float{image} x, float{list(shape)} w, float[{shape[0]}] b, float low, float high)
        => ({result_type} y) {{ h = Conv {attributes} (x, w, b) y = {after} }}"""
    weight = floats(*shape) * np.float32(10.0) ** floats(shape[0], *[1] * (len(shape) - 1))
    constants = {"w": weight, "b": floats(shape[0]), "low": np.float32(0), "high": np.float32(6)}
    sizes = [int(n) for n in image.strip("[]").split(",")]
    model = graph(text, constants)
    result = quantized(model, images(*sizes))
    assert result.verdicts["h"] == "int8"
    node = next(node for node in result.model.graph if node.op_type == "Conv")
    readers = [use.node.op_type for use in node.outputs[0].uses()]
    # Nothing is quantized between the convolution and its activation.
    assert readers == [activation or "QuantizeLinear"]
    stored, scale = result.constant("w.int8"), result.constant("w.scale")
    assert (stored.dtype, scale.shape) == (np.int8, (shape[0],))
    others = tuple(range(1, len(shape)))
    np.testing.assert_array_equal(np.abs(stored).max(axis=others), 127)
    bias = node.inputs[2].producer()
    assert result.constant(bias.inputs[0]).dtype == np.int32
    operand = result.parameters(node.inputs[0].name)[0]
    np.testing.assert_allclose(result.constant(bias.inputs[1]), operand * scale, rtol=1e-6)
    # Three roundings to 8 bits of numbers without outliers; a Clip takes away the largest.
    assert result.sqnr() > (25 if activation == "Clip" else 30)
    assert_runs_elsewhere(result)


def test_onnxruntime_computes_with_integers(tmp_path):
    import onnx

    onnxruntime = pytest.importorskip("onnxruntime")
    text = """g (float[1,4,8,8] x, float[4,4,3,3] w, float[4] b) => (float[1,4,8,8] y) {
        a = Conv <pads = [1,1,1,1]> (x, w, b)
        r = Relu (a)
        c = Conv <pads = [1,1,1,1]> (r, w, b)
        s = Add (c, r)
        y = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (s)
    }"""
    result = quantized(
        graph(text, {"w": floats(4, 4, 3, 3), "b": floats(4)}),
        images(1, 4, 8, 8),
        green=("op:Add",),
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    onnxruntime.InferenceSession(
        result.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("QLinearConv") == 2
    assert kinds.count("QLinearAdd") == 1
    assert "Conv" not in kinds


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_transposed_convolutions_have_channels_along_axis_1(weights):
    text = """g (float[1,4,5,5] x, float[4,6,3,3] w, float[6] b) => (float[1,6,7,7] y) {
        y = ConvTranspose (x, w, b)
    }"""
    weight = floats(4, 6, 3, 3) * np.float32(10.0) ** floats(1, 6, 1, 1)
    result = quantized(
        graph(text, {"w": weight, "b": floats(6)}), images(1, 4, 5, 5), weights=weights
    )
    node = result.producer("w.float")
    if weights == "per-channel":
        assert node.attributes.get_int("axis") == 1
        assert result.constant("w.scale").shape == (6,)
        assert result.sqnr() > 30
    else:
        assert result.constant("w.scale").shape == ()
    assert_runs_elsewhere(result)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", ["", "row", "number", "matrix"])
def test_gemm(transposed, bias):
    shapes = {"": (), "row": (5,), "number": (1,), "matrix": (1, 5)}
    dims = "5,12" if transposed else "12,5"
    c = f", float{list(shapes[bias])} c" if bias else ""
    text = f"""g (float[3,12] x, float[{dims}] w{c}) => (float[3,5] y) {{
        h = Gemm <transB = {transposed}, alpha = 0.5, beta = 3.0> (x, w{", c" if bias else ""})
        y = Relu (h)
    }}"""
    weight = (floats(12, 5) * np.float32(10.0) ** floats(1, 5)).T if transposed else floats(12, 5)
    constants = {"w": weight.copy(), "c": floats(*shapes[bias])}
    result = quantized(graph(text, constants), images(3, 12), green=("op:Gemm",))
    gemm = next(node for node in result.model.graph if node.op_type == "Gemm")
    assert result.producer("w.float").attributes.get_int("axis") == (0 if transposed else 1)
    assert {"alpha", "beta"}.isdisjoint(gemm.attributes)
    if bias:
        assert result.constant("c.int32").shape == (5,)
    assert result.sqnr() > 30
    assert_runs_elsewhere(result)


def test_a_matmul_that_nothing_int8_reads_has_a_float_result():
    text = """g (float[N,16] x, float[16,16] w, float[16] b) => (float[N,16] y) {
        a = MatMul (x, w)
        c = Add (a, b)
        d = MatMul (c, w)
        y = Softmax (d)
    }"""
    result = quantized(graph(text, {"w": floats(16, 16), "b": floats(16)}), images(5, 16))
    assert result.reasons["d"] == "its result stays float: nothing int8 reads it"
    assert [use.node.op_type for use in result.producer("d").outputs[0].uses()] == ["Softmax"]
    assert result.producer("c").op_type == "Add"
    assert [use.node.op_type for use in result.producer("c").outputs[0].uses()] == [
        "QuantizeLinear"
    ]
    assert result.constant("b.int32").dtype == np.int32
    assert result.reasons["y"].startswith("probabilities lose most")
    assert result.sqnr() > 25
    assert_runs_elsewhere(result)


def test_a_bias_of_floats_stays_where_the_result_does():
    text = """g (float[N,16] x, float[16,16] w, float[16] b) => (float[N,16] y) {
        a = MatMul (x, w)
        c = Add (b, a)
        y = Softmax (c)
    }"""
    result = quantized(graph(text, {"w": floats(16, 16), "b": floats(16)}), images(5, 16))
    assert {result.verdicts["a"], result.verdicts["c"]} == {"int8"}
    assert "b" in result.model.graph.initializers
    assert result.count["QuantizeLinear"] == 1


def test_a_relu_stays_where_the_zero_point_does_not_clip():
    text = """g (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) {
        a = Conv (x, w) y = Relu (a) }"""
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    result = quantized(model, images(1, 4, 8, 8), activations="symmetric")
    assert result.parameters("y")[1] == 0
    assert result.count["Relu"] == 1
    assert min(float(each["y"].min()) for each in result.outputs()) >= 0
    assert_runs_elsewhere(result)
    affine = quantized(model, images(1, 4, 8, 8))
    assert affine.parameters("y")[1] == -128
    assert affine.count["Relu"] == 1


def test_an_activation_that_is_not_alone_is_no_part_of_the_product():
    text = """g (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y, float[1,4,8,8] z) {
        a = Conv (x, w) y = Relu (a) z = Neg (a) }"""
    result = quantized(graph(text, {"w": floats(4, 4, 1, 1)}), images(1, 4, 8, 8))
    readers = [use.node.op_type for use in result.producer("a").outputs[0].uses()]
    assert readers == ["QuantizeLinear"]
    assert (result.verdicts["y"], result.reasons["y"]) == (
        "float",
        "no int8 operator reads its result",
    )


def test_shared_weights_and_biases_have_a_bias_for_each_product():
    text = """g (float[1,4,8,8] x, float[4,4,1,1] w, float[4] b) => (float[1,4,8,8] y) {
        a = Conv (x, w, b) c = Conv (a, w, b) y = Conv (c, w, b) }"""
    result = quantized(graph(text, {"w": floats(4, 4, 1, 1), "b": floats(4)}), images(1, 4, 8, 8))
    names = sorted(result.model.graph.initializers)
    assert sum(name.startswith("w.int8") for name in names) == 1
    assert sum(name.startswith("b") and ".int32" in name for name in names) == 3
    assert {"w", "b"}.isdisjoint(names)
    assert result.sqnr() > 20
    assert_runs_elsewhere(result, steps=3)


def test_a_bias_that_does_not_fit_raises_the_scale_of_its_channel():
    weight = floats(3, 8)
    weight[1] *= np.float32(1e-9)
    bias = np.array([1.0, 10.0, 0.0], np.float32)
    text = """g (float[4,8] x, float[3,8] w, float[3] b) => (float[4,3] y) {
        h = Gemm <transB = 1> (x, w, b) y = Relu (h) }"""
    model = graph(text, {"w": weight, "b": bias})
    result = quantized(model, images(4, 8), bias_correction=False)
    stored, scales = result.constant("b.int32").astype(np.float64), result.constant("b.scale")
    assert np.abs(stored).max() + 8 * 255 * 127 < 2**31
    # One in 2³¹ of the least scale that has room for it.
    assert (np.abs(stored * scales - bias) <= 0.501 * scales).all()
    least = np.abs(weight).max(axis=1) / 127
    assert result.constant("w.scale")[1] > 100 * least[1]
    np.testing.assert_allclose(result.constant("w.scale")[[0, 2]], least[[0, 2]], rtol=1e-6)
    assert result.sqnr() > 30
    assert_runs_elsewhere(result)


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("Conv (x, w, c)", "its bias 'c' is computed or may be fed"),
        ("Conv (x, fed)", "its weight 'fed' may be fed; freeze-weights turns it into a constant"),
    ],
)
def test_what_may_be_fed_leaves_the_node_float(operator, reason):
    text = f"""g (float[1,4,8,8] x, float[4,4,1,1] w, float[4] c, float[4,4,1,1] fed)
        => (float[1,4,8,8] y) {{ y = {operator} }}"""
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    for value in model.graph.inputs[1:]:
        import onnx_ir as ir

        value.const_value = ir.Tensor(floats(*[int(d) for d in value.shape]), name=value.name)
        model.graph.initializers[value.name] = value
    result = quantized(model, images(1, 4, 8, 8))
    assert (result.modified, result.reasons["y"]) == (False, reason)


@pytest.mark.parametrize("name", ["w", "b"])
def test_infinite_constants_are_an_error(name):
    constants = {"w": floats(4, 4, 1, 1), "b": floats(4)}
    constants[name].flat[1] = np.inf
    text = """g (float[1,4,8,8] x, float[4,4,1,1] w, float[4] b) => (float[1,4,8,8] y) {
        y = Conv (x, w, b) }"""
    data = images(1, 4, 8, 8)
    with pytest.raises(NarrowpassError, match="infinite"):
        quantized(graph(text, constants), data)


def test_dead_channels_have_finite_scales():
    weight = floats(4, 4, 1, 1)
    weight[2] = 0
    text = """g (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) { y = Conv (x, w) }"""
    result = quantized(graph(text, {"w": weight}), images(1, 4, 8, 8))
    assert result.constant("w.scale")[2] == 1
    assert result.sqnr() > 30
    silent = quantized(graph(text, {"w": weight}), [{"x": np.zeros((1, 4, 8, 8), np.float32)}])
    assert np.isfinite(silent.parameters("y")[0])
    assert not silent.outputs()[0]["y"].any()


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 17, 19, 21, 23])
def test_operator_sets(opset):
    text = """g (float[1,4,8,8] x, float[4,4,3,3] w, float[4] b) => (float[1,4,6,6] y) {
        h = Conv (x, w, b) y = Relu (h) }"""
    model = graph(text, {"w": floats(4, 4, 3, 3), "b": floats(4)}, opset=opset)
    result = quantized(model, images(1, 4, 8, 8))
    assert result.model.opset_imports[""] == max(opset, 13)
    assert result.sqnr() > 30
    assert_runs_elsewhere(result)


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_one_scale_for_a_weight_is_known_to_older_operator_sets(opset):
    text = """g (float[1,4,8,8] x, float[4,4,3,3] w, float[4] b) => (float[1,4,6,6] y) {
        h = Conv (x, w, b) y = Relu (h) }"""
    model = graph(text, {"w": floats(4, 4, 3, 3), "b": floats(4)}, opset=opset)
    result = quantized(model, images(1, 4, 8, 8), weights="per-tensor")
    assert result.model.opset_imports[""] == opset
    assert result.constant("b.scale").shape == ()
    assert result.sqnr() > 30
    assert_runs_elsewhere(result)
