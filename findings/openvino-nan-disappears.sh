#!/usr/bin/env bash
# OpenVINO's CPU plugin turns NaN into 0 in a Relu, and loses numbers beside NaN in ReduceMax.
#
# One would guess that NaN passes through Relu, as in numpy, PyTorch and onnxruntime, or that the
# largest of [1, NaN, ...] is NaN or 1. Relu of NaN is 0, so that a broken layer looks well behind
# it; ReduceMax of 1 and fifteen NaN is the least float32, -3.4e38.
#
# Seen with OpenVINO 2026.4.1 on x86-64.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import openvino

x = np.full((1, 1, 16), np.nan, np.float32)
x[..., 0] = 1
core, found = openvino.Core(), {}
print("OpenVINO", openvino.__version__)
for call in ("Relu(x)", "ReduceMax<keepdims = 1>(x)"):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        f"g (float[1,1,16] x) => (float[A,B,C] y) {{ y = {call} }}"
    )
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    found[call] = compiled({"x": x})[0].ravel()[:4].tolist()
    print(call, found[call])
assert found["Relu(x)"] == [1, 0, 0, 0]
assert found["ReduceMax<keepdims = 1>(x)"] == [float(np.finfo(np.float32).min)]
PYTHON
