"""Layouts: no transposes inside a CNN, fusions, partitions, and what explain reports."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from xnn_kit import check, compile_model, feeds_for, fully_connected

RNG = np.random.default_rng(3)


def parse(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def profile(model: onnx.ModelProto) -> list[str]:
    """Return the kernels that run, in order, with one name for XNNPACK's and our convolutions."""
    program = compile_model(model)
    names = {"convolution": "xnn convolution"}
    return [names.get(row.kernel, row.kernel) for row in program.profile(feeds_for(model), runs=1)]


BLOCK = """g (float[1, 8, 9, 9] x) => (float[1, 5] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 8>(b, d) e = Add(c, x) f = Relu(e)
    p = MaxPool<kernel_shape = [3, 3]>(f) q = Concat<axis = 1>(p, p)
    s = GlobalAveragePool(q) t = Sigmoid(s) u = Mul(q, t)
    m = GlobalAveragePool(u) n = Flatten(m) y = Gemm(n, k)
}"""


def block() -> onnx.ModelProto:
    return parse(BLOCK, w=floats(8, 8, 3, 3), d=floats(8, 1, 3, 3), k=floats(16, 5))


def test_one_transpose_at_the_border_of_a_cnn():
    model = block()
    check(model)
    kernels = profile(model)
    assert kernels.count("transpose") == 1
    assert kernels[0] == "transpose"


def test_activations_run_in_their_producers():
    additions = parse("""g (float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) {
        a = Sigmoid(x) b = Add(a, x) y = Relu(b)
    }""")
    kernels = [*profile(block()), *profile(additions)]
    assert "xnn clamp" not in kernels
    assert "add-clamp" in kernels


def test_a_constant_for_each_channel_is_a_bias():
    text = """g (float[1, 3, 5, 5] x) => (float[1, 4, 3, 3] y) {
        a = Conv(x, w) b = Add(a, c) y = Relu(b)
    }"""
    model = parse(text, w=floats(4, 3, 3, 3), c=floats(4, 1, 1))
    check(model)
    assert profile(model) == ["transpose", "xnn convolution", "transpose"]


def test_a_network_is_one_partition():
    program = compile_model(block())
    assert {plan.partition for plan in program.explain()} == {0}
    assert program.stats()["partitions"] == 1


PATTERNS = {
    "gelu by division": (
        "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
        "gelu",
    ),
    "gelu by multiplication": (
        "a = Mul(x, s) b = Erf(a) c = Add(one, b) d = Mul(c, half) y = Mul(x, d)",
        "gelu",
    ),
    "gelu, half first": (
        "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, half) y = Mul(d, c)",
        "gelu",
    ),
    "tanh gelu": (
        (
            "a = Pow(x, three) b = Mul(a, k) c = Add(x, b) d = Mul(c, t) e = Tanh(d) "
            "f = Add(e, one) h = Mul(x, half) y = Mul(h, f)"
        ),
        "tanh gelu",
    ),
    "silu": ("a = Sigmoid(x) y = Mul(x, a)", "silu"),
    "hard swish": ("a = HardSigmoid<alpha = 0.16666667>(x) y = Mul(a, x)", "hard swish"),
    "hard swish by clip": (
        "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)",
        "hard swish",
    ),
}
NUMBERS = {
    "one": 1.0,
    "half": 0.5,
    "three": 3.0,
    "zero": 0.0,
    "six": 6.0,
    "r": 2**0.5,
    "s": 0.5**0.5,
    "k": 0.044715,
    "t": (2 / np.pi) ** 0.5,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_become_one_kernel(name):
    body, kernel = PATTERNS[name]
    numbers = {key: np.array(value, np.float32) for key, value in NUMBERS.items()}
    model = parse(f"g (float[3, 40] x) => (float[3, 40] y) {{ {body} }}", **numbers)
    check(model)
    assert profile(model) == [kernel]


BROKEN = {
    "another factor": "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, three)",
    "another operand": "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(z, c) y = Mul(d, half)",
    "used twice": (
        "a = Sigmoid(x) b = Mul(x, a) y = Add(a, b)"
    ),
    "a slope of its own": "a = HardSigmoid<alpha = 0.2>(x) y = Mul(a, x)",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_near_misses_of_patterns_are_not_fused(name):
    numbers = {key: np.array(value, np.float32) for key, value in NUMBERS.items()}
    text = f"g (float[3, 40] x, float[3, 40] z) => (float[3, 40] y) {{ {BROKEN[name]} }}"
    check(parse(text, **numbers), native=None)


def test_attention_moves_nothing():
    """Heads are split and joined by views; queries, keys and values stay where they are."""
    text = """g (float[2, 7, 12] x) => (float[2, 7, 12] y) {
        q0 = MatMul(x, wq) q1 = Reshape(q0, heads) q = Transpose<perm = [0, 2, 1, 3]>(q1)
        k0 = MatMul(x, wk) k1 = Reshape(k0, heads) k = Transpose<perm = [0, 2, 3, 1]>(k1)
        v0 = MatMul(x, wv) v1 = Reshape(v0, heads) v = Transpose<perm = [0, 2, 1, 3]>(v1)
        s = MatMul(q, k) p = Softmax(s) c = MatMul(p, v)
        t = Transpose<perm = [0, 2, 1, 3]>(c) u = Reshape(t, flat) y0 = MatMul(u, wo)
        y = Add(y0, b)
    }"""
    weights = {name: floats(12, 12) for name in ("wq", "wk", "wv", "wo")}
    shapes = {"heads": np.array([0, 0, 3, 4]), "flat": np.array([0, 0, 12])}
    model = parse(text, **weights, **shapes, b=floats(12))
    check(model)
    # The bias is fused into the last matmul.
    matmul = fully_connected()
    assert profile(model) == [matmul, matmul, matmul, "attention", matmul]


@pytest.mark.parametrize("declared", ["[2, M]", "[a, b, c, d]"])
def test_a_rank_that_is_declared_wrong(declared):
    """Some exporters write such of outputs: what follows from the graph counts."""
    text = f"""g (float[2, 12] x) => (float{declared} y) <int64[2] rest = {{3, 4}}> {{
        a = Relu(x) s = Shape(x) n = Slice(s, zero1, one1) target = Concat<axis = 0>(n, rest)
        y = Reshape(a, target)
    }}"""
    numbers = {"zero1": np.array([0]), "one1": np.array([1])}
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    for name, array in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = floats(2, 12)
    got = compile_model(model).run({"x": x})["y"]
    np.testing.assert_array_equal(got, np.maximum(x, 0).reshape(2, 3, 4))


def test_operations_that_no_host_node_reads_run_with_their_reader():
    """Between them is no border of partitions, where values lie in ONNX's order."""
    text = """g (float[3, 40] x) => (float[3, 5] y) {
        a = Relu(x) e, n, v = BatchNormalization<training_mode = 1>(a, s, s, s, s)
        f = MatMul(e, w) m = MatMul(a, w) y = Add(f, m)
    }"""
    # onnxruntime writes the running mean over the initializer that is the scale as well.
    model = parse(text, w=floats(40, 5), s=np.ones(40, np.float32))
    program = check(model, native=None, oracle="onnx")
    places = {plan.op_type: plan.partition for plan in program.explain()}
    assert places == {"Relu": 0, "BatchNormalization": None, "MatMul": 1, "Add": 1}


def test_channels_are_shuffled_by_one_transpose():
    """Splitting channels, and joining them again, leaves the pixels where they are."""
    text = """g (float[N, 6, 5, 7] x) => (float[N, 4, 5, 7] y) {
        a = Conv(x, w) b = Reshape(a, split) c = Transpose<perm = [0, 2, 1, 3, 4]>(b)
        d = Reshape(c, join) y = Conv(d, v)
    }"""
    weights = {"w": floats(12, 6, 1, 1), "v": floats(4, 12, 1, 1)}
    shapes = {"split": np.array([-1, 3, 4, 5, 7]), "join": np.array([-1, 12, 5, 7])}
    model = parse(text, **weights, **shapes)
    program = compile_model(model)
    for batch in (1, 3):
        check(model, {"x": floats(batch, 6, 5, 7)}, program=program)
    rows = program.profile({"x": floats(2, 6, 5, 7)}, runs=1)
    # One at either border, one between the channels.
    assert [row.kernel for row in rows].count("transpose") == 3


def test_patches_become_a_sequence_without_a_copy():
    text = """g (float[2, 3, 8, 8] x) => (float[2, 16, 5] y) {
        a = Conv<strides = [2, 2]>(x, w) b = Reshape(a, flat) y0 = Transpose<perm = [0, 2, 1]>(b)
        y = Relu(y0)
    }"""
    model = parse(text, w=floats(5, 3, 2, 2), flat=np.array([0, 5, 16]))
    check(model)
    assert profile(model) == ["transpose", "xnn convolution", "xnn clamp"]


RESHAPES = [
    ((2, 6, 4, 5), (2, 3, 2, 4, 5)),
    ((2, 6, 4, 5), (2, 6, 20)),
    ((2, 6, 4, 5), (12, 4, 5)),
    ((2, 6, 4, 5), (2, 24, 5)),
    ((2, 6, 4, 5), (2, 1, 6, 4, 5)),
    ((1, 6, 4, 5), (6, 4, 5)),
    ((2, 6, 1, 5), (2, 6, 5)),
    ((2, 6, 4, 5), (2, 120)),
    ((2, 6, 4, 5), (4, 3, 10, 2)),
    ((2, 1, 4, 5), (2, 2, 2, 5)),
]


@pytest.mark.parametrize("shapes", RESHAPES, ids=str)
@pytest.mark.parametrize("static", [True, False])
def test_reshapes_of_images(shapes, static):
    before, after = shapes
    dims = [before[0] if static else "N", *before[1:]]
    shape = ", ".join(map(str, dims))
    result = ", ".join(f"d{axis}" for axis in range(len(after)))
    text = f"""g (float[{shape}] x) => (float[{result}] y) {{
        a = Conv(x, w) b = Reshape(a, t) y = Abs(b)
    }}"""
    kernel = floats(before[1], before[1], 1, 1)
    model = parse(text, w=kernel, t=np.array(after if static else [-1, *after[1:]]))
    check(model, {"x": floats(*before)})


def test_explain_says_why_not():
    text = "g (float[3] x) => (float[3] y) { a = Bernoulli(x) b = Relu(a) y = Add(b, b) }"
    plans = {plan.op_type: plan for plan in compile_model(parse(text)).explain()}
    assert plans["Bernoulli"].kernel == "onnx.reference"
    assert plans["Bernoulli"].reason == "Bernoulli has no native kernel"
    assert plans["Relu"].partition == 0
    assert plans["Relu"].reason == ""


def test_supports():
    import onnx_ir as ir

    from narrowpass import Accept, Reject
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

    backend = XnnCpuBackend()
    model = ir.from_proto(block())
    answers = [backend.supports(node) for node in model.graph]
    assert all(isinstance(answer, Accept) for answer in answers)
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.deprecated:
            continue
        node = ir.Node("", schema.name, inputs=[])
        answer = backend.supports(node)
        assert isinstance(answer, Reject)
        assert answer.reason


def test_shape_arithmetic_cuts_no_partition():
    text = """g (float[N, 4, 6] x) => (float[N, M] y) {
        a = Relu(x) s = Shape(a) n = Gather(s, zero) m = Unsqueeze(n, axis)
        t = Concat<axis = 0>(m, rest) b = Reshape(a, t) y = Sigmoid(b)
    }"""
    model = parse(text, zero=np.array(0), axis=np.array([0]), rest=np.array([-1]))
    program = check(model, {"x": floats(2, 4, 6)})
    assert program.stats()["partitions"] == 1
    for batch in (1, 5, 3):
        check(model, {"x": floats(batch, 4, 6)}, program=program)
