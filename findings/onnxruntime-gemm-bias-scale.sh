#!/usr/bin/env bash
# onnxruntime's optimizer ignores the scale of a quantized bias.
#
# One would guess that the default optimizations keep results within rounding. A Gemm between
# DequantizeLinear nodes becomes QGemm, and an int32 bias is taken for one with the scale of the
# accumulators (scale of x times scale of w), whatever scale its own DequantizeLinear has. Here
# that is 0.05 and not 0.01: a bias of 5 and 10 counts as 1 and 2. No message says so.
#
# Seen with onnxruntime 1.32.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime

text = """<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,2] y)
    <float s = {0.1}, int8 z = {0}, int8[4,2] w = {0, 1, 2, 3, 4, 5, 6, 7}, int32[2] b = {100, 200},
     float sb = {0.05}, float st = {0.25}> {
    q = QuantizeLinear(x, s, z) xd = DequantizeLinear(q, s, z) wd = DequantizeLinear(w, s, z)
    bd = DequantizeLinear(b, sb) t = Gemm(xd, wd, bd)
    tq = QuantizeLinear(t, st, z) y = DequantizeLinear(tq, st, z) }"""
model = onnx.parser.parse_model(text).SerializeToString()
x = np.float32([[1, 2, 3, 4]])
found = {}
for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    found[level] = onnxruntime.InferenceSession(model, options).run(None, {"x": x})[0].tolist()
    print("onnxruntime", onnxruntime.__version__, level, found[level])
exact = x @ np.arange(8).reshape(4, 2) * 0.1 + [5, 10]
print("exactly", exact.tolist())
assert found["ORT_DISABLE_ALL"] == [[9, 15]]
assert found["ORT_ENABLE_ALL"] == [[5, 7]]
PYTHON
