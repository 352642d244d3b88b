#!/usr/bin/env bash
# onnxruntime casts the same float32 to two different UINT32, by where it stands in the tensor.
#
# One would guess that a number that UINT32 has not, of which ONNX leaves the cast undefined, is
# at least cast the same way throughout a tensor. 5e9 becomes 0 in the part that is computed with
# vectors and 705,032,704 (the lower bits) in the rest behind it: results change with the length
# of the tensor.
#
# Seen with onnxruntime 1.32.0 on x86-64; other processors may have other numbers.
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

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> '
    "g (float[N] x) => (uint32[N] y) { y = Cast<to=12>(x) }"
)
session = onnxruntime.InferenceSession(model.SerializeToString())
print("onnxruntime", onnxruntime.__version__)
(found,) = session.run(None, {"x": np.full(37, 5e9, np.float32)})
values, counts = np.unique(found, return_counts=True)
print("37 times 5e9 is", dict(zip(values.tolist(), counts.tolist())))
assert len(values) == 2
PYTHON
