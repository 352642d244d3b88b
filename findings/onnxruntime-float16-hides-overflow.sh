#!/usr/bin/env bash
# onnxruntime's CPU provider computes float16 nodes in float32, and so hides their overflow.
#
# One would guess that a float16 model that runs without infinities here runs so on a device with
# float16 arithmetic. (60000 + 60000) - 60000 is 60000, since the sum between the nodes stays
# float32, also without optimizations; by the types of the model it is infinity, as onnx's
# evaluator has it.
#
# Seen with onnxruntime 1.32.0 on x86-64.
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
    '<ir_version: 10, opset_import: ["": 21]> '
    "g (float16[N] x) => (float16[N] y) { a = Add(x, x) y = Sub(a, x) }"
)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
feeds = {"x": np.float16([60000])}
found = session.run(None, feeds)[0].item()
typed = ReferenceEvaluator(model).run(None, feeds)[0].item()
print("onnxruntime", onnxruntime.__version__, "has", found, "and onnx", onnx.__version__, typed)
assert found == 60000
assert np.isinf(typed)
PYTHON
