"""Fused epilogues of float32 matmuls and convolutions: biases, residuals and functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import check, compile_model

pytestmark = pytest.mark.usefixtures("fp32_code")

RNG = np.random.default_rng(8)
ERF_GELU = """s = Div(x, root) e = Erf(s) p = Add(e, one) m = Mul(x, p) f = Mul(m, half)"""
TANH_GELU = """c = Pow(x, three) d = Mul(c, few) i = Add(x, d) o = Mul(i, slope) t = Tanh(o)
    p = Add(t, one) m = Mul(x, p) f = Mul(m, half)"""
FUNCTIONS = {
    "Relu": "f = Relu(x)",
    "Clip": "f = Clip(x, low, high)",
    "Gelu": "f = Gelu(x)",
    "Gelu by tanh": 'f = Gelu<approximate = "tanh">(x)',
    "GELU in parts": ERF_GELU,
    "GELU by tanh in parts": TANH_GELU,
    "SiLU": "g = Sigmoid(x) f = Mul(x, g)",
    "HardSwish": "f = HardSwish(x)",
}
NUMBERS = {
    "root": 2**0.5,
    "one": 1.0,
    "half": 0.5,
    "three": 3.0,
    "few": 0.044715,
    "slope": (2 / np.pi) ** 0.5,
    "low": -0.5,
    "high": 0.75,
}
MAKERS = {
    "MatMul": ("x0 = MatMul(a, w) x = Add(x0, b)", (12, 20), "float[n, 5, 12] a", "[n, 5, 20]"),
    "Gemm": ("x = Gemm(a, w, b)", (12, 20), "float[n, 12] a", "[n, 20]"),
    "Conv": (
        "x = Conv<pads = [1, 1, 1, 1]>(a, w, b)",
        (20, 12, 3, 3),
        "float[n, 12, 6, 7] a",
        "[n, 20, 6, 7]",
    ),
    "pixels": ("x = Conv(a, w, b)", (20, 12, 1, 1), "float[n, 12, 6, 7] a", "[n, 20, 6, 7]"),
}


def model(text, inputs, output, **weights):
    text = (
        f"<ir_version: 10, opset_import: ['' : 20]> g ({inputs}) => (float{output} y) {{ {text} }}"
    )
    proto = onnx.parser.parse_model(text.replace("'", '"'))
    numbers = {key: np.array(n, np.float32) for key, n in NUMBERS.items() if f"{key})" in text}
    numbers |= {key: np.array(NUMBERS[key], np.float32) for key in ("low", "high") if key in text}
    for key, array in {**numbers, **weights}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    for node in proto.graph.node:
        node.name = node.output[0]
    return onnx.shape_inference.infer_shapes(proto, data_prop=True)


def weights_of(shape):
    outputs = shape[0] if len(shape) == 4 else shape[-1]
    return {
        "w": RNG.standard_normal(shape).astype(np.float32) / 5,
        "b": RNG.standard_normal(outputs).astype(np.float32),
    }


def sizes(proto, n, **others):
    """Feed standard normal arrays."""
    feeds = {}
    for value in proto.graph.input:
        dims = [
            d.dim_value or {"n": n, **others}[d.dim_param] for d in value.type.tensor_type.shape.dim
        ]
        feeds[value.name] = RNG.standard_normal(dims).astype(np.float32)
    return feeds


def run(proto, feeds):
    """Check a model, and return the kernels that ran."""
    program = compile_model(proto)
    check(proto, feeds, program=program)
    return [row.kernel for row in program.profile(feeds, runs=1) if row.kernel != "transpose"]


@pytest.mark.parametrize("order", ["", "before", "after"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("maker", MAKERS)
def test_epilogues_are_fused(maker, function, order):
    text, shape, given, output = MAKERS[maker]
    inputs = given
    if order:
        inputs += f", float{output} r"
    after = FUNCTIONS[function]
    if order == "before":
        text = text.replace("x = ", "x1 = ") + " x = Add(r, x1)"
    text += f" {after}"
    text += " y = Add(f, r)" if order == "after" else ""
    if order != "after":
        text = text.replace("f = ", "y = ")
    proto = model(text, inputs, output, **weights_of(shape))
    kernels = run(proto, sizes(proto, 2))
    assert kernels == ["convolution" if maker == "Conv" else "fully connected"]


@pytest.mark.parametrize("maker", MAKERS)
def test_residuals_that_are_broadcast_at_times(maker):
    """Names of dimensions say nothing here: the kernel adds what fits, others do the rest."""
    text, shape, given, output = MAKERS[maker]
    other = output.replace("n", "m", 1)
    proto = model(
        f"{text} z = Add(x, r) y = Relu(z)", f"{given}, float{other} r", output, **weights_of(shape)
    )
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    program = compile_model(proto)
    for n, m in [(2, 2), (2, 1), (1, 2), (3, 3)]:
        check(proto, sizes(proto, n, m=m), program=program)
    together = [row.kernel for row in program.profile(sizes(proto, 2, m=2), runs=1)]
    apart = [row.kernel for row in program.profile(sizes(proto, 2, m=1), runs=1)]
    assert sum("add" in kernel for kernel in together) == 0
    assert sum("add" in kernel for kernel in apart) == 1


def test_a_sum_of_two_matmuls_is_fused_into_one():
    weights = {"v": RNG.standard_normal((12, 20)).astype(np.float32)}
    weights |= {"w": RNG.standard_normal((12, 20)).astype(np.float32)}
    proto = model(
        "p = MatMul(a, v) q = MatMul(a, w) s = Add(p, q) y = Relu(s)",
        "float[n, 12] a",
        "[n, 20]",
        **weights,
    )
    assert run(proto, sizes(proto, 3)) == ["fully connected"] * 2


def test_a_residual_that_is_the_operand_too():
    """Its memory is not the result's: the matmul reads it to its end."""
    weights = {"w": RNG.standard_normal((70, 70)).astype(np.float32)}
    proto = model(
        "a = Sigmoid(i) p = MatMul(a, w) q = Add(p, a) s = Flatten(q) t = MatMul(s, w) "
        "y = Add(s, t)",
        "float[n, 70] i",
        "[n, 70]",
        **weights,
    )
    assert run(proto, sizes(proto, 30)).count("fully connected") == 2


def test_a_value_with_another_reader_is_computed():
    proto = model(
        "x = MatMul(a, w) f = Relu(x) y = Add(f, x)", "float[n, 12] a", "[n, 20]",
        w=RNG.standard_normal((12, 20)).astype(np.float32),
    )  # fmt: skip
    assert run(proto, sizes(proto, 3))[0] == "fully connected"
    proto.graph.output.append(onnx.helper.make_tensor_value_info("f", 1, ["n", 20]))
    check(proto, sizes(proto, 3))


def test_functions_after_a_clamp_are_not_fused():
    proto = model(
        "x = MatMul(a, w) c = Relu(x) s = Sigmoid(c) y = Mul(c, s)",
        "float[n, 12] a", "[n, 20]", w=RNG.standard_normal((12, 20)).astype(np.float32),
    )  # fmt: skip
    assert run(proto, sizes(proto, 3)) == ["fully connected", "silu"]


def test_upcast_int8_weights_have_no_fused_function():
    """Matmuls with int8 weights are XNNPACK's, whose epilogues have no functions."""
    proto = model(
        "d = DequantizeLinear(w, half) x = MatMul(a, d) y = Gelu(x)",
        "float[n, 12] a",
        "[n, 20]",
        w=RNG.integers(-127, 127, (12, 20)).astype(np.int8),
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    kernels = run(proto, sizes(proto, 3))
    assert kernels[-1] == "gelu"
