#!/usr/bin/env bash
# onnx's reference evaluator computes Softmax of operator set 11 by the rule of operator set 13.
#
# One would guess that the evaluator has each version of an operator, as the schemas do. Up to
# operator set 12 Softmax flattens all axes from `axis` on, and normalizes them together; the
# evaluator takes that one axis alone. onnxruntime computes the old rule. Sums differ by the size
# of the other axes.
#
# Seen with onnx 1.23.2.
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
    '<ir_version: 7, opset_import: ["": 11]> '
    "g (float[2,2,2] x) => (float[2,2,2] y) { y = Softmax<axis = 1>(x) }"
)
x = np.zeros((2, 2, 2), np.float32)
(theirs,) = ReferenceEvaluator(model).run(None, {"x": x})
(right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
print("onnx", onnx.__version__, "each element is", theirs[0, 0, 0], "by the evaluator,")
print("onnxruntime", onnxruntime.__version__, "has", right[0, 0, 0], "= 1 / (2 * 2)")
assert (theirs == 0.5).all()
assert (right == 0.25).all()
PYTHON
