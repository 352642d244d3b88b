#!/usr/bin/env bash
# onnx's reference evaluator quantizes +infinity to the least integer.
#
# One would guess that QuantizeLinear, whose definition ends in a saturation, takes +infinity to
# 127. The evaluator casts to int32 before it clips, where infinity becomes the least int32: both
# infinities are -128. Large finite numbers saturate on the right side. onnxruntime has 127.
#
# Seen with onnx 1.23.2 and numpy 2.4.6 on x86-64.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

warnings.simplefilter("ignore")
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (int8[N] y) '
    "<float s = {0.5}, int8 z = {0}> { y = QuantizeLinear(x, s, z) }"
)
x = np.float32([np.inf, -np.inf, 1000, -1000])
theirs = ReferenceEvaluator(model).run(None, {"x": x})[0].tolist()
right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0].tolist()
print("of", x.tolist(), "onnx", onnx.__version__, "has", theirs)
print("onnxruntime", onnxruntime.__version__, "has", right)
assert theirs == [-128, -128, 127, -128]
assert right == [127, -128, 127, -128]
PYTHON
