#!/usr/bin/env bash
# onnxruntime quantizes the activations of a MatMul whose weights alone are quantized.
#
# One would guess that DequantizeLinear of INT4 weights and a MatMul are float32 arithmetic:
# nothing in the model quantizes x. With the default optimizations both become MatMulNBits with
# accuracy level 4, which rounds the rows of x to int8: results err by 0.4 % of the largest,
# 10,000 times as much as without optimizations. The session option
# session.qdq_matmulnbits_accuracy_level = 1 keeps float32.
#
# Seen with onnxruntime 1.32.0 on x86-64 with AVX-512 and VNNI.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 ml-dtypes==0.5.4
venv/bin/python - <<'PYTHON'
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

K, N = 256, 8
rng = np.random.default_rng(0)
w = rng.integers(-8, 8, (K, N))
x = rng.standard_normal((1, K)).astype(np.float32)
model = onnx.parser.parse_model(
    f'<ir_version: 10, opset_import: ["": 21]> g (float[M,{K}] x) => (float[M,{N}] y) '
    "{ d = DequantizeLinear<axis = 0, block_size = 32>(w, s) y = MatMul(x, d) }"
)
model.graph.initializer.append(numpy_helper.from_array(w.astype(ml_dtypes.int4), "w"))
model.graph.initializer.append(numpy_helper.from_array(np.ones((K // 32, N), np.float32), "s"))
exact = x.astype(np.float64) @ w


def error(*entries):
    options = onnxruntime.SessionOptions()
    for entry in entries:
        options.add_session_config_entry(*entry)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return float(np.abs(session.run(None, {"x": x})[0] - exact).max() / np.abs(exact).max())


default, float32 = error(), error(("session.qdq_matmulnbits_accuracy_level", "1"))
print("onnxruntime", onnxruntime.__version__, f"error {default:.1e} by default, {float32:.1e} with")
print("session.qdq_matmulnbits_accuracy_level = 1")
assert default > 1e-3
assert float32 < 1e-5
PYTHON
