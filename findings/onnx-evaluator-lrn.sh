#!/usr/bin/env bash
# onnx's reference evaluator normalizes as many channels of an LRN as there are images.
#
# One would guess that a loop over channels ends at the number of channels. In a batch of one
# image all channels but the first come back as they were, plausible numbers without an error.
#
# Seen with onnx 1.23.2; onnxruntime 1.32.0 has the definition.
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
from onnx.reference import ReferenceEvaluator

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,8,1,1] x) => (float[1,8,1,1] y) '
    "{ y = LRN<size = 3, alpha = 1.0>(x) }"
)
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
x = np.ones((1, 8, 1, 1), np.float32)
(theirs,) = ReferenceEvaluator(model).run(None, {"x": x})
(right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
for name, found in (("onnx's evaluator", theirs), ("onnxruntime", right)):
    print(name, np.round(found.ravel(), 2).tolist())
assert (theirs.ravel() < 1).tolist() == [True] + [False] * 7
assert (right < 1).all()
PYTHON
