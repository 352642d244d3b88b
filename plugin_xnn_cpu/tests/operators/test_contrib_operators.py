"""Norms, activations, matmuls and embeddings of com.microsoft, against onnxruntime's kernels.

The tolerance is 1e-5 of an output's largest element, as for other operators: fp32 accumulation in
another order. Where onnxruntime approximates a function, the test says so.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contrib_kit import compare
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowpass

onnxruntime = pytest.importorskip("onnxruntime")
QUICK = settings(max_examples=6, deadline=None)
RNG = np.random.default_rng(3)


def floats(*shape, dtype=np.float32):
    return np.asarray(RNG.standard_normal(shape), dtype)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40))


@QUICK
@given(sizes, st.booleans(), st.booleans(), st.booleans())
def test_skip_layer_normalization(size, beta, bias, total):
    batch, rows, width = size
    inputs = {
        "x": floats(batch, rows, width),
        "skip": floats(batch, rows, width),
        "gamma": floats(width),
        "beta": floats(width) if beta else None,
        "bias": floats(width) if bias else None,
    }
    outputs = ("y", "", "", "total") if total else ("y",)
    compare("SkipLayerNormalization", inputs, outputs, constants=("gamma", "beta"), epsilon=1e-5)


@pytest.mark.parametrize("shape", [(1, 4, 8), (4, 8)])
def test_skip_that_is_broadcast(shape):
    inputs = {"x": floats(3, 4, 8), "skip": floats(*shape), "gamma": floats(8), "beta": floats(8)}
    compare("SkipLayerNormalization", inputs)


@QUICK
@given(sizes, st.booleans(), st.booleans())
def test_skip_simplified_layer_normalization(size, bias, total):
    batch, rows, width = size
    inputs = {
        "x": floats(batch, rows, width),
        "skip": floats(batch, rows, width),
        "gamma": floats(width),
        "bias": floats(width) if bias else None,
    }
    outputs = ("y", "", "", "total") if total else ("y",)
    compare("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=1e-6)


@QUICK
@given(sizes)
def test_simplified_layer_normalization(size):
    inputs = {"x": floats(*size), "scale": floats(size[-1])}
    compare("SimplifiedLayerNormalization", inputs, domain="", axis=-1, epsilon=1e-6)


def test_normalizations_of_onnxruntime_in_old_versions(tmp_path):
    """Its optimizer writes them into models of operator sets that have none of them."""
    text = """<ir_version: 8, opset_import: ["": 14]>
    g (float[2, 8] x, float[8] scale, float[8] bias) => (float[2, 8] y, float[2, 8] z) {
        y = LayerNormalization <axis = -1, epsilon = 0.00001> (x, scale, bias)
        z = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, scale)
    }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {"x": floats(2, 8), "scale": floats(8), "bias": floats(8)}
    right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    with narrowpass.load(narrowpass.build(tmp_path / "model.onnx", ""), "xnn-cpu") as program:
        found = program.run(feeds)
    for name, wanted in zip(("y", "z"), right, strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("op_type", ["Gelu", "QuickGelu", "FastGelu"])
@QUICK
@given(sizes)
def test_activations(op_type, size):
    # onnxruntime's tanh in FastGelu is a quotient of polynomials, off by some 1e-7: what errors are
    # relative to must not be a number that is all but 0.
    x = 3 * floats(*size)
    x.flat[0] = 1
    compare(op_type, {"x": x})


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
@QUICK
@given(sizes)
def test_activations_with_bias(op_type, size):
    compare(op_type, {"x": floats(*size), "bias": floats(size[-1])}, constants=("bias",))


def test_quick_gelu_with_a_factor():
    compare("QuickGelu", {"x": floats(3, 5)}, alpha=0.7)


@QUICK
@given(
    sizes=st.tuples(*[st.integers(1, 9)] * 3),
    turned=st.tuples(st.booleans(), st.booleans()),
    alpha=st.sampled_from([1.0, 0.125]),
    constant=st.booleans(),
)
def test_fused_matmul(sizes, turned, alpha, constant):
    m, k, n = sizes
    a = floats(2, *((k, m) if turned[0] else (m, k)))
    b = floats(*((n, k) if turned[1] else (k, n))) if constant else None
    if b is None:
        b = floats(2, *((n, k) if turned[1] else (k, n)))
    compare(
        "FusedMatMul",
        {"a": a, "b": b},
        constants=("b",) if constant else (),
        transA=int(turned[0]),
        transB=int(turned[1]),
        alpha=alpha,
    )


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu"])
def test_fused_gemm(activation):
    inputs = {"a": floats(3, 5), "b": floats(4, 5), "c": floats(4)}
    named = {"activation": activation}
    if activation == "LeakyRelu":
        named["activation_alpha"] = 0.25
    compare("FusedGemm", inputs, constants=("b", "c"), transB=1, alpha=0.5, **named)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("Clip", [-0.5, 0.75]), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4])],
)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation, parameters, added):
    inputs = {
        "x": floats(1, 3, 8, 8),
        "w": floats(4, 3, 3, 3),
        "b": floats(4),
        "z": floats(1, 4, 8, 8) if added else None,
    }
    named = {"activation_params": parameters} if parameters else {}
    compare(
        "FusedConv",
        inputs,
        constants=("w", "b"),
        pads=[1, 1, 1, 1],
        kernel_shape=[3, 3],
        activation=activation,
        **named,
    )


@QUICK
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 7),
    segments=st.booleans(),
    mask=st.booleans(),
    places=st.booleans(),
    total=st.booleans(),
)
def test_embed_layer_normalization(batch, rows, segments, mask, places, total):
    lengths = RNG.integers(1, rows + 1, batch)
    inputs = {
        "ids": RNG.integers(0, 20, (batch, rows)).astype(np.int32),
        "segments": RNG.integers(0, 2, (batch, rows)).astype(np.int32) if segments else None,
        "words": floats(20, 12),
        "positions": floats(9, 12),
        "kinds": floats(2, 12) if segments else None,
        "gamma": floats(12),
        "beta": floats(12),
        "mask": (np.arange(rows) < lengths[:, None]).astype(np.int32) if mask else None,
        "places": RNG.integers(0, 9, (batch, rows)).astype(np.int32) if places else None,
    }
    tables = ("words", "positions", "kinds", "gamma", "beta")
    outputs = ("y", "index", "sum") if total else ("y", "index")
    compare("EmbedLayerNormalization", inputs, outputs, constants=tables, epsilon=1e-12)


@QUICK
@given(
    heads=st.integers(1, 3),
    half=st.integers(1, 6),
    rows=st.integers(1, 6),
    rank=st.sampled_from([3, 4]),
    interleaved=st.booleans(),
    partial=st.booleans(),
    offset=st.booleans(),
)
def test_rotary_embedding(heads, half, rows, rank, interleaved, partial, offset):
    batch, depth = 2, 2 * half + (4 if partial else 0)
    shape = (batch, rows, heads * depth) if rank == 3 else (batch, heads, rows, depth)
    places = np.array([3]) if offset else RNG.integers(0, 16, (batch, rows))
    angles = floats(16, half)
    inputs = {
        "x": floats(*shape),
        "places": places.astype(np.int64),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }
    named = {"num_heads": heads, "rotary_embedding_dim": 2 * half} if partial else {}
    compare(
        "RotaryEmbedding",
        inputs,
        constants=("cos", "sin"),
        interleaved=int(interleaved),
        **named,
    )
