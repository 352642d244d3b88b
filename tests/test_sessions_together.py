"""Several sessions at once with 4-bit weights: joined and gated matmuls, rows quantized to int8."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import narrowpass

pytest.importorskip("narrowpass_int4")
pytest.importorskip("narrowpass_xnn_cpu")
onnxruntime = pytest.importorskip("onnxruntime")

WIDTH, HIDDEN = 64, 96
LAYER = """
    q_L = MatMul(x_L, wq_L)
    new_k_L = MatMul(x_L, wk_L)
    new_v_L = MatMul(x_L, wv_L)
    k_L = Concat <axis = 1> (past_k_L, new_k_L)
    v_L = Concat <axis = 1> (past_v_L, new_v_L)
    turned_L = Transpose <perm = [0, 2, 1]> (k_L)
    scores_L = MatMul(q_L, turned_L)
    weights_L = Softmax <axis = -1> (scores_L)
    found_L = MatMul(weights_L, v_L)
    o_L = MatMul(found_L, wo_L)
    a_L = Add(x_L, o_L)
    gate_L = MatMul(a_L, wg_L)
    up_L = MatMul(a_L, wu_L)
    sigmoid_L = Sigmoid(gate_L)
    silu_L = Mul(gate_L, sigmoid_L)
    mixed_L = Mul(silu_L, up_L)
    down_L = MatMul(mixed_L, wd_L)
    x_N = Add(a_L, down_L)
"""


def decoder(layers: int = 2) -> onnx.ModelProto:
    """Return layers of attention and gated MLPs, of one token."""
    inputs = [f"float[1, P, {WIDTH}] past_{n}_{i}" for i in range(layers) for n in "kv"]
    outputs = [f"float[1, T, {WIDTH}] {n}_{i}" for i in range(layers) for n in "kv"]
    body = "".join(LAYER.replace("_L", f"_{i}").replace("_N", f"_{i + 1}") for i in range(layers))
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[1, 1, {WIDTH}] x_0, {", ".join(inputs)})
        => (float[1, 1, {WIDTH}] x_{layers}, {", ".join(outputs)}) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    sizes = {"g": (WIDTH, HIDDEN), "u": (WIDTH, HIDDEN), "d": (HIDDEN, WIDTH)}
    for layer in range(layers):
        for name in "qkvogud":
            shape = sizes.get(name, (WIDTH, WIDTH))
            matrix = (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, f"w{name}_{layer}"))
    return model


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("users", [2, 5, 9])
@pytest.mark.parametrize("activations", ["float", "dynamic"])
def test_sessions_at_once(activations, users, threads):
    """Beside onnxruntime's loop on the narrowed model, and bit by bit beside sessions alone.

    Without quantized rows accumulators are float32: 1e-4 of the largest element after 4 steps of
    two layers. Rows in blocks of int8 lose 1/127 of a block's largest element in each matmul.
    """
    pipeline = f"int4{{block=32,activations={activations}}}"
    bundle = narrowpass.build(decoder(), pipeline)
    model = ir.to_proto(bundle.methods["main"])
    settings = onnxruntime.SessionOptions()
    if activations == "float":  # optimized, it would quantize rows to int8, too
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), settings)
    names = [value.name for value in oracle.get_outputs()]
    rng = np.random.default_rng(users)
    with narrowpass.load(bundle, "xnn-cpu", threads=threads) as program:
        alone = [program.session() for _ in range(users)]
        together = [program.session() for _ in range(users)]
        caches = [
            {f"past_{n}_{i}": np.zeros((1, 0, WIDTH), np.float32) for n in "kv" for i in range(2)}
            for _ in range(users)
        ]
        for user in range(users):  # of other lengths
            for _ in range(user % 3):
                feeds = {"x_0": rng.standard_normal((1, 1, WIDTH)).astype(np.float32)}
                for session in (alone[user], together[user]):
                    session.run(feeds)
                found = dict(zip(names, oracle.run(names, {**feeds, **caches[user]}), strict=True))
                caches[user] = {f"past_{n}": v for n, v in found.items() if n[0] in "kv"}
        for _ in range(4):
            feeds = [
                {"x_0": rng.standard_normal((1, 1, WIDTH)).astype(np.float32)} for _ in range(users)
            ]
            results = program.run_sessions(together, feeds)
            for user in range(users):
                y = results[user]["x_2"]
                given = {**feeds[user], **caches[user]}
                found = dict(zip(names, oracle.run(names, given), strict=True))
                caches[user] = {f"past_{n}": v for n, v in found.items() if n[0] in "kv"}
                bound = 1e-4 if activations == "float" else 3e-2
                np.testing.assert_allclose(
                    y, found["x_2"], rtol=0, atol=bound * np.abs(found["x_2"]).max()
                )
                wanted = alone[user].run(feeds[user])["x_2"]
                if activations == "dynamic":
                    np.testing.assert_array_equal(y, wanted)
                else:
                    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(y).max())
