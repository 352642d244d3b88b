#!/usr/bin/env bash
# OpenVINO computes a float32 model in bfloat16 where the processor can.
#
# One would guess that a float32 model without any option is computed in float32. On processors
# with AVX512-BF16 or AMX the CPU plugin's default precision is bfloat16: a matmul errs by 0.3 %
# of the largest element, and results change from one machine to the next.
# INFERENCE_PRECISION_HINT = f32 or EXECUTION_MODE_HINT = ACCURACY asks for float32.
#
# Seen with OpenVINO 2026.4.1; on a processor without bfloat16 the script says so, and checks
# nothing else.
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
from onnx import numpy_helper

rng = np.random.default_rng(0)
w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((256, 64), (32, 256)))
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> '
    "g (float[32,256] x) => (float[32,64] y) { y = MatMul(x, w) }"
)
model.graph.initializer.append(numpy_helper.from_array(w, "w"))
core, exact, errors = openvino.Core(), x.astype(np.float64) @ w, []
print("OpenVINO", openvino.__version__)
for settings in ({}, {"INFERENCE_PRECISION_HINT": "f32"}):
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    precision = compiled.get_property("INFERENCE_PRECISION_HINT")
    errors.append(float(np.abs(compiled({"x": x})[0] - exact).max() / np.abs(exact).max()))
    print(settings, precision, f"error {errors[-1]:.1e}")
if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
    assert errors[0] > 1e-3
else:
    print("this processor has no bfloat16")
assert errors[1] < 1e-5
PYTHON
