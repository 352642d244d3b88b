#!/usr/bin/env bash
# onnxruntime's optimizer refuses a Sigmoid between scales for each channel.
#
# One would guess that DequantizeLinear, Sigmoid, QuantizeLinear with per-axis scales either is
# fused or stays as it is. It is replaced by QLinearSigmoid, which takes one scale for the tensor,
# and creating the session fails. Without optimizations the model runs.
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

text = """<ir_version: 10, opset_import: ["": 17]> g (int8[1,2,2] x) => (int8[1,2,2] y)
    <float[2] s = {0.5, 0.1}, int8[2] z = {0, 0}> {
    d = DequantizeLinear<axis = 1>(x, s, z) a = Sigmoid(d)
    y = QuantizeLinear<axis = 1>(a, s, z) }"""
model = onnx.parser.parse_model(text)
onnx.checker.check_model(model, full_check=True)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
found = session.run(None, {"x": np.ones((1, 2, 2), np.int8)})[0].ravel().tolist()
print("onnxruntime", onnxruntime.__version__, "as it is:", found)
assert found == [1, 1, 5, 5]
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
try:
    onnxruntime.InferenceSession(model.SerializeToString(), options)
except Exception as error:
    print("optimized:", str(error)[:180])
else:
    raise SystemExit("it loads with optimizations, too")
PYTHON
