#!/usr/bin/env bash
# onnxruntime's optimizer makes a valid model with a DequantizeLinear of int32 invalid.
#
# One would guess that a model that loads without optimizations loads with them. Behind
# DequantizeLinear of int32, which ONNX has for biases, a Transpose is followed by a new
# QuantizeLinear to int32, which is no operator: creating the session fails with INVALID_GRAPH.
# Without optimizations the model runs.
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

text = """<ir_version: 10, opset_import: ["": 21]> g (int32[2,3] x) => (float[3,2] y)
    <float s = {0.5}, int32 z = {0}>
    { d = DequantizeLinear(x, s, z) y = Transpose<perm = [1, 0]>(d) }"""
model = onnx.parser.parse_model(text)
onnx.checker.check_model(model, full_check=True)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
x = np.arange(6, dtype=np.int32).reshape(2, 3)
print("onnxruntime", onnxruntime.__version__, "as it is:", session.run(None, {"x": x})[0].tolist())
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
try:
    onnxruntime.InferenceSession(model.SerializeToString(), options)
except Exception as error:
    print("optimized:", str(error)[:200])
    assert "QuantizeLinear" in str(error)
else:
    raise SystemExit("it loads with optimizations, too")
PYTHON
